"""A candidate against its reference build: pairs of runs, the spread between starts, one per cent of the step."""

from dataclasses import replace
from random import Random

import pytest

from pytest_llmperf import Verdict
from pytest_llmperf.judging.reference_comparison import (
    PAIRS_OF_START,
    REFERENCE_LOOKS,
    ReferenceTerms,
    judge_against_reference,
)
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.results.causes.comparisons import ChangeUndecided, WorseThanReference
from pytest_llmperf.results.causes.limits import MetricUnavailable
from pytest_llmperf.results.check import NoFurtherRuns
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.stats.priors import Margins

TERMS = ReferenceTerms(("itl_p50",), "h200", 15, {})
START_SD, PAIR_SD = 0.0018, 0.003  # of median ITL between resident servers of one H200


def side(values, metric, first_start):
    """Runs with these values of one metric, each a seed of its own, in turn with the other side: A B, B A, A B."""
    runs = tuple(
        replace(Run.of_values(seed, first_start + 2 * (seed // PAIRS_OF_START), {metric: value}),
                block=2 * seed + (1 if (seed % 2 == 0) == (first_start == 1) else 2))
        for seed, value in enumerate(values)
    )
    conditions = {"engine": "vllm", "engine.version": "0.26.0"}
    metrics = tuple(replace(run.metrics, counted_by=CountedBy.CHUNKS) for run in runs)
    return Measurement("vllm('m')", "random_tokens(…)", conditions, runs, metrics)


def judged(candidate, reference, terms=TERMS, looked_at=0, **fields):
    metric = terms.primaries[0]
    (result,) = judge_against_reference(side(candidate, metric, 1), side(reference, metric, 2), terms, looked_at,
                                        **fields)
    return result


def test_two_per_cent_slower_step_fails_and_names_the_build():
    result = judged([5.10, 5.11, 5.095], [5.0, 5.005, 4.995])
    assert (result.verdict, type(result.cause)) == (Verdict.FAIL, WorseThanReference)
    assert result.estimate == pytest.approx(0.02, abs=0.002)
    assert result.numbers["reference"] == "vllm 0.26.0"
    assert (result.numbers["starts_a"], result.numbers["starts_b"]) == (1, 1)
    assert result.limit == pytest.approx(0.01)


@pytest.mark.parametrize(("second_start", "verdict"), [(1.015, Verdict.FAIL), (1.00, Verdict.INCONCLUSIVE)])
def test_change_of_one_and_a_half_per_cent_fails_only_if_both_starts_show_it(second_start, verdict):
    reference = [5.0, 5.01, 4.995, 5.005] * 4
    factors = [1.015] * PAIRS_OF_START + [second_start] * PAIRS_OF_START
    slow = [value * factor * (1.001 if pair % 2 else 0.999)
            for pair, (value, factor) in enumerate(zip(reference, factors, strict=True))]
    assert judged(slow[:8], reference[:8]).verdict is Verdict.INCONCLUSIVE
    result = judged(slow, reference, looked_at=8)
    assert result.verdict is verdict
    assert (result.numbers["start_sd"] > 0.0018) == (verdict is Verdict.INCONCLUSIVE)


def test_changed_default_of_reference_build_is_first_suspect(message):
    slow, fast = side([5.10, 5.11, 5.095], "itl_p50", 1), side([5.0, 5.005, 4.995], "itl_p50", 2)
    now = {"engine": "vllm", "engine.version": "0.32.0", "engine.max_num_batched_tokens": "16384"}
    old = {"engine": "vllm", "engine.version": "0.26.0", "engine.max_num_batched_tokens": "8192", "installation": "old"}
    (result,) = judge_against_reference(replace(slow, conditions=now), replace(fast, conditions=old), TERMS, 0)
    assert result.numbers["build_changes"] == {
        "engine.version": ["0.26.0", "0.32.0"], "engine.max_num_batched_tokens": ["8192", "16384"]}
    message(reason_text(result))


def test_equal_builds_pass_and_state_the_smallest_detectable_change():
    result = judged([5.0, 5.01, 4.995], [5.001, 5.005, 4.998])
    assert (result.verdict, result.cause) == (Verdict.PASS, None)
    assert 0.012 < result.numbers["smallest_detectable"] < 0.025


def test_earlier_look_of_resumed_session_raises_smallest_detectable_change():
    candidate, reference = side([5.0, 5.01, 4.995], "itl_p50", 1), side([5.001, 5.005, 4.998], "itl_p50", 2)
    changes = []
    for earlier_looks in (0, 1, 2):
        looked = replace(candidate, earlier_looks=earlier_looks)
        assert looked.executions == 1 + earlier_looks
        changes += [judge_against_reference(looked, reference, TERMS, 0)[0].facts["smallest_detectable"]]
    assert changes[0] < changes[1] < changes[2]


def test_two_per_cent_faster_step_is_improved():
    assert judged([4.9, 4.905, 4.895], [5.0, 5.005, 4.995]).verdict is Verdict.IMPROVED


def test_one_per_cent_slower_step_is_never_a_pass():
    result = judged([5.05, 5.055, 5.045], [5.0, 5.005, 4.995], no_further_runs=NoFurtherRuns.OUT_OF_TIME)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert (type(result.cause), result.numbers["no_further_runs"]) == (ChangeUndecided, "out_of_time")


def test_drift_of_the_machine_cancels_in_alternating_pairs():
    """The machine slows by 0.5 % a run; the candidate runs in places 1, 4, 5 and the reference in 2, 3, 6."""
    candidate, reference = ([5.0 * 1.005**place for place in places] for places in ((1, 4, 5), (2, 3, 6)))
    result = judged(candidate, reference)
    assert result.verdict is not Verdict.FAIL
    assert abs(result.estimate) < 0.003


def test_throughput_is_worse_when_smaller():
    terms = ReferenceTerms(("output_throughput",), "h200", 15, {})
    result = judged([90.0, 90.3, 89.9], [100.0, 100.2, 99.8], terms)
    assert result.verdict is Verdict.FAIL
    assert result.estimate == pytest.approx(-0.1, abs=0.002)


def test_shares_differ_by_points_and_may_be_zero():
    terms = ReferenceTerms(("prefix_cache_hit_rate",), "h200", 15, {})
    result = judged([0.0, 0.0, 0.0], [0.4, 0.41, 0.39], terms)
    assert result.verdict is Verdict.FAIL
    assert result.estimate == pytest.approx(-0.4)


def test_margins_of_the_test_replace_default_margins():
    terms = ReferenceTerms(("itl_p50",), "h200", 15, {"itl_p50": Margins(0.03, 0.06)})
    assert judged([5.10, 5.11, 5.095], [5.0, 5.005, 4.995], terms).verdict is Verdict.PASS


def test_missing_value_is_an_error_that_names_the_side():
    result = judged([5.0, None, 5.0], [5.0, 5.0, 5.0])
    assert (result.verdict, type(result.cause)) == (Verdict.ERROR, MetricUnavailable)
    assert result.numbers["side"] == "candidate"


def test_verdicts_of_equal_and_slower_builds_have_the_stated_frequencies():
    """With the noise of resident servers: 300 comparisons each, every look of the rule."""

    def frequencies(effect, seed):
        rng, verdicts = Random(seed), []
        for _ in range(300):
            offsets = [effect + rng.gauss(0, START_SD * 2**0.5) for _ in range(2)]
            reference = [5.0 * (1 + rng.gauss(0, 0.004)) for _ in range(16)]
            candidate = [value * (1 + offsets[pair // PAIRS_OF_START] + rng.gauss(0, PAIR_SD))
                         for pair, value in enumerate(reference)]
            looked_at = 0
            for look in REFERENCE_LOOKS:
                verdict = judged(candidate[:look], reference[:look], looked_at=looked_at).verdict
                looked_at = look
                if verdict is not Verdict.INCONCLUSIVE:
                    break
            verdicts.append(verdict)
        return {verdict: verdicts.count(verdict) / len(verdicts) for verdict in set(verdicts)}

    equal, first, two = frequencies(0.0, 1), frequencies(0.01, 2), frequencies(0.02, 3)
    assert equal.get(Verdict.FAIL, 0) == 0
    assert equal.get(Verdict.INCONCLUSIVE, 0) <= 0.1
    assert first.get(Verdict.PASS, 0) <= 0.1
    assert two.get(Verdict.FAIL, 0) >= 0.9


def exchanged(of_gpus, changes):
    """Runs on two GPU sets, whose difference is `of_gpus`, and which the builds exchange after each three pairs."""
    sides = {"candidate": [], "reference": []}
    for seed in range(3 * len(changes)):
        start, jitter = seed // 3, (1.0, 1.001, 0.999)[seed % 3]
        first, second = (of_gpus, 1.0) if start % 2 == 0 else (1.0, of_gpus)
        for name, value in (("candidate", 5 * changes[start] * jitter * first), ("reference", 5 * second)):
            start_id = 2 * start + (name == "reference")
            run = replace(Run.of_values(seed, start_id, {"itl_p50": value}), block=seed)
            sides[name].append(run)
    set_of = {2 * start + side: (start + side) % 2 for start in range(len(changes)) for side in (0, 1)}
    both = [Measurement("m", "w", {}, tuple(runs), tuple(
        replace(run.metrics, counted_by=CountedBy.CHUNKS) for run in runs)) for runs in sides.values()]
    terms = replace(TERMS, looks={6: 0.4, 12: 0.8, 18: 1.0}, set_of=set_of)
    (result,) = judge_against_reference(*both, terms)
    return result


@pytest.mark.parametrize(("change", "verdict"), [(1.0, Verdict.PASS), (1.03, Verdict.FAIL), (0.97, Verdict.IMPROVED)])
@pytest.mark.parametrize("of_gpus", [1.0, 1.05, 0.8])
def test_exchange_removes_the_difference_between_gpus_and_states_it(of_gpus, change, verdict):
    result = exchanged(of_gpus, [change, change])
    assert result.verdict is verdict
    assert result.estimate == pytest.approx(change - 1, abs=1e-3)
    assert result.numbers["gpu_difference"] == pytest.approx(of_gpus - 1, abs=1e-3)
    assert result.numbers["start_sd"] == pytest.approx(0.0018, rel=0.02)  # one exchange shows nothing of the starts


def test_starts_that_differ_within_a_placement_raise_the_start_sd():
    steady, spread = exchanged(1.05, [1.03, 1.03, 1.03, 1.03]), exchanged(1.05, [1.02, 1.02, 1.04, 1.04])
    assert steady.verdict is Verdict.FAIL
    assert spread.numbers["start_sd"] > 2 * steady.numbers["start_sd"]
