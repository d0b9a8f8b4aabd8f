"""Every cause has one sentence, and sentences.txt shows an example of each.

After a change of wording: `python tests/unit/results/test_sentences.py` writes the file anew. Review its diff.
"""

import json
from dataclasses import fields
from math import inf
from pathlib import Path

import pytest

from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.comparisons import (
    STOPS,
    Better,
    BetterThanReference,
    ChangeUndecided,
    ConditionsDiffer,
    EndpointStartsUnknown,
    MachineDrifts,
    NoPrimaryMetric,
    NothingStored,
    PairsTooFew,
    RatioMissesLimit,
    RatioNearLimit,
    RunsDrift,
    RunsTooFew,
    SpreadTooLarge,
    StartsTooFew,
    ValueNotComparable,
    Worse,
    WorseThanReference,
)
from pytest_llmperf.results.causes.limits import (
    AccuracyLost,
    AccuracyNotEmulated,
    AnswersAlike,
    AnswersDiffer,
    BeyondLimit,
    EnergyNotEmulated,
    EngineStarted,
    LimitInInterval,
    MetricUnavailable,
    NoInterval,
    NoRequestServed,
    NotRecovered,
    ObservationsTooFew,
    QuestionsTooFew,
    RateRefuted,
    RateUndecided,
    RefusedOtherwise,
    RequestsConcurrent,
    RequestsDependent,
    RequestsMissLimit,
    RunsInvalid,
    RunsMissLimit,
    ShareNearLimit,
    ShareTooLarge,
    StartsDiffer,
    StatisticInfinite,
    TokensUnverified,
    ValuesInfinite,
    ValueZero,
)
from pytest_llmperf.results.causes.runs import (
    AnswersNotStreamed,
    ArrivalsStampedLate,
    BelowHardwareBound,
    CacheNotEmpty,
    ChunksCoalesced,
    ClocksUncertain,
    ForeignRequests,
    GpuContended,
    GpuFault,
    GpuPartitioned,
    GpuSettingsChanged,
    GpusMixed,
    GpuThrottled,
    LmcacheUnused,
    LoadProcessSuspended,
    NotSteady,
    OtherModel,
    Preemptions,
    ReplicaIdle,
    RequestsFailed,
    RequestsSentLate,
    ServerRestarted,
    ServiceScaled,
    SlotsEmpty,
    TokenCountsDisagree,
    TokensMiscounted,
)
from pytest_llmperf.results.check import CheckResult, Facts, Problem, Stated
from pytest_llmperf.results.check_json import CAUSES, FAULTS, PLACE, check_from, check_json
from pytest_llmperf.results.sentences import (
    basis_text,
    cause_text,
    estimate_text,
    interval_text,
    limit_text,
    problem_text,
    reason_text,
)
from pytest_llmperf.results.strict_json import parse
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval

GOLDEN = Path(__file__).with_name("sentences.txt")
RUNS = {"runs": 3, "seeds": 3, "starts": 1}
OVER = {"exceedances": 12, "observations": 1000, "counted_as": "over", "effective_n": 740.2, **RUNS}
WHY = {"failure_reasons": "5 × timeout (first_byte_timeout_s = 120), 2 × HTTP 500"}
REFUSED = {"refused_for": "max_model_len", "ending": "exit code 1", "ended_after_s": 31.9}
RATE = {**OVER, "share": 0.012, "allowed_share": 0.01}
PAIRS = {"pairs": 3, "starts_a": 1, "starts_b": 1, "start_sd": 0.03, "start_sd_source": "default for throughput"}
STORED = {"runs": 3, "stored_runs": 9, "stored_sessions": 3, "run_sd": 0.008, "session_sd": 0.012,
          "session_sd_source": "prior of TPOT", "negligible": 0.02, "smallest_detectable": 0.031}
NEW_HOST = {"engine": "vllm", "compared_sessions": 3, "stored_hosts": 3, "host_stored": False,
            "stored_versions": ["0.26.0"]}
NEW_BUILD = {"engine": "vllm", "compared_sessions": 3, "changed_sessions": 3,
             "build_changes": {"engine.version": ["0.26.0", "0.32.0"], "driver": ["580", "590"],
                               "engine.max_num_batched_tokens": ["8192", "16384"]}}
GONE = {"metric": "ttft_p50", "missing_runs": 1, "of_runs": 3}
LOAD = {"load_processes": 2, "load_cpus": 2, "own_cpus": False, "busy": 0.87, "read_delay_ms": 4.2}
HERE = {"run": 2, "seed": 1}


def judged(*arguments, cause=None, facts=(), **more):
    """A result whose cause and basis come from one dictionary."""
    facts = dict(facts)
    owned = made(cause, facts)
    basis = {name: value for name, value in facts.items() if name in Facts.__annotations__}
    return CheckResult(*arguments, cause=owned, facts=basis, **more)


def made(cause, facts):
    """A cause or fault from the facts that have the names of its fields."""
    return cause and cause(**{field.name: facts[field.name] for field in fields(cause) if field.name in facts})


def problem_of(fault, facts):
    return Problem(made(fault, facts), **{name: facts[name] for name in PLACE if name in facts})


def latency(verdict, cause=None, facts=None, **fields):
    """A result of "ttft_p99 <= 500ms"."""
    values = {"estimate": 471.0, "interval": Interval(431.0, 489.0, 0.95)} | fields
    return judged("ttft_p99 <= 500ms", verdict, "ttft_p99", Unit.MS, Comparison.AT_MOST, 500.0, cause=cause,
                       facts=facts or {}, **values)


def ratio(verdict, cause=None, facts=None, **fields):
    """A result of "ttft_p50(b) / ttft_p50(a) >= 3"."""
    values = {"estimate": 3.204, "interval": Interval(2.4, 4.27, 0.995)} | fields
    return judged("ttft_p50(b) / ttft_p50(a) >= 3", verdict, "ttft_p50(b) / ttft_p50(a)", Unit.RATIO,
                       Comparison.AT_LEAST, 3.0, cause=cause, facts={**PAIRS, **(facts or {})}, **values)


def change(verdict, cause=None, facts=None, **fields):
    """A result of a comparison with a baseline."""
    values = {"estimate": 0.129, "interval": Interval(0.098, 0.161, 0.95)} | fields
    values = {"before": 12.97, "after": 12.97 * (1 + values["estimate"]), **values}
    return judged("baseline tpot_mean", verdict, "tpot_mean", Unit.CHANGE, Comparison.AT_MOST, 0.05, cause=cause,
                       facts={**STORED, **(facts or {})}, **values)


def accuracy(verdict, cause=None, facts=None, **fields):
    """A result of an accuracy guard."""
    values = {"estimate": -0.22, "interval": Interval(-0.251, -0.19, 0.99), "before": 0.92, "after": 0.7} | fields
    asked = {"questions": 2000, "only_a": 2, "only_b": 442, "p": 1.2e-9}
    return judged("accuracy(sums) of A and B", verdict, "accuracy(sums)", Unit.POINTS, Comparison.AT_LEAST, -0.01,
                       cause=cause, facts={**asked, **(facts or {})}, **values)


def against_reference(verdict, cause=None, facts=None, **fields):
    """A result of a comparison with a reference build."""
    values = {"estimate": 0.0213, "interval": Interval(0.015, 0.028, 0.965)} | fields
    values = {"before": 5.21, "after": 5.21 * (1 + values["estimate"]), **values}
    more = {"reference": "vllm 0.26.0", "negligible": 0.003, "smallest_detectable": 0.017}
    return judged("reference itl_p50", verdict, "itl_p50", Unit.CHANGE, Comparison.AT_MOST, 0.01, cause=cause,
                       facts={**PAIRS, **more, **(facts or {})}, **values)


def of_cause(cause, facts=None, verdict=Verdict.ERROR, metric="baseline"):
    """A result without a number."""
    return judged("baseline", verdict, metric, cause=cause, facts=facts or {})


FAIL, OPEN = Verdict.FAIL, Verdict.INCONCLUSIVE
RESULTS = [
    latency(Verdict.PASS, facts={**OVER, "longest_unseen_s": 3.0}),
    latency(Verdict.PASS, facts={**OVER, "longest_unseen_s": 3.0, "unseen_requests": 0.0033, "unseen_starts": 0.63}),
    latency(Verdict.PASS, facts={**OVER, "level_exceedances": 3, "level_margin": 0.08, "longest_unseen_s": 3.0,
                                 "hardware_bound_unknown": True}),
    latency(Verdict.PASS, facts={**OVER, "looks": 3}),
    latency(OPEN, LimitInInterval, {**RUNS, "failed_requests": 2}, interval=Interval(431.0, inf, 0.95)),
    latency(FAIL, BeyondLimit, {"runs": 6, "seeds": 3, "starts": 2}, estimate=521.0,
            interval=Interval(508.0, 533.0, 0.95)),
    latency(FAIL, NoRequestServed, {**RUNS, "missing_runs": 1, "of_runs": 3}, estimate=None, interval=None),
    latency(FAIL, StatisticInfinite, {**RUNS, "failed_requests": 7, "statistic": "mean", **WHY}, estimate=None,
            interval=None),
    latency(FAIL, StatisticInfinite, {**RUNS, "failed_requests": 1, "statistic": "max"}, interval=None),
    latency(FAIL, NotRecovered, {**RUNS, "missing_runs": 1, "of_runs": 3}, estimate=None, interval=None),
    latency(OPEN, NoInterval, {"runs": 1}, interval=None),
    latency(OPEN, RequestsDependent, {**RATE, "few_enough": True}),
    latency(OPEN, RequestsDependent, RUNS),
    latency(OPEN, RequestsConcurrent, RATE),
    latency(FAIL, RunsMissLimit, {**RUNS, "exact": True, "missing_runs": 2, "of_runs": 3}),
    latency(FAIL, RequestsMissLimit, {**OVER, "counted_as": "failed", **WHY}),
    latency(FAIL, ShareTooLarge, {**RATE, "confidence": 0.95, "counted_as": "failed", **WHY}),
    latency(Verdict.PASS, None, {**OVER, "counted_as": "failed", **WHY}),
    latency(OPEN, ObservationsTooFew, {**RATE, "counted_as": "failed", "needed": 830, **WHY}),
    latency(Verdict.PASS, None, {**OVER, "failed_requests": 8, **WHY}),
    latency(FAIL, ShareTooLarge, {**RATE, "confidence": 0.95}),
    latency(FAIL, RequestsMissLimit, {**OVER, "counted_as": "missed"}),
    latency(OPEN, ShareNearLimit, RATE),
    latency(OPEN, ObservationsTooFew, {**RATE, "counted_as": "missed", "needed": 830}),
    latency(OPEN, StartsDiffer, {**RATE, "few_enough": False, "slowdown": 1.31}),
    latency(OPEN, StartsDiffer, {**RATE, "few_enough": False, "slowdown": 2.75, "effective_n": 0.4}),
    latency(OPEN, StartsDiffer, {**RATE, "few_enough": True, "slowdown": 4.0}),
    latency(FAIL, RateRefuted, {**RUNS, "proven_rate": 8.0, "refuted_rate": 9.5}),
    latency(OPEN, RateUndecided, {**RUNS, "proven_rate": 8.0}),
    latency(OPEN, RateUndecided, RUNS),
    latency(Verdict.ERROR, MetricUnavailable, {**GONE, "needs": "a served request"}, estimate=None,
            interval=None),
    latency(OPEN, TokensUnverified, {**GONE, "metric": "tpot_mean", "missing_runs": 3}),
    latency(OPEN, TokensUnverified, {**GONE, "metric": "tpot_mean", "missing_runs": 3, "tokenizer": "llama",
                                            "text_tokens": 1600, "usage_tokens": 800}),
    latency(Verdict.PASS, facts={**OVER, "tokenizer": "meta-llama/Llama-3.1-8B"}),
    ratio(Verdict.PASS, facts={"no_loss_proven": True}),
    ratio(FAIL, RatioMissesLimit, estimate=2.1),
    ratio(OPEN, RatioNearLimit),
    ratio(OPEN, PairsTooFew, {"guard": "tpot_mean"}),
    ratio(OPEN, PairsTooFew, {"pairs": 1}),
    ratio(OPEN, MachineDrifts, {"drift_share": 0.21}),
    ratio(OPEN, StartsTooFew, {"needed_starts": 4}),
    ratio(OPEN, StartsTooFew, {"needed_starts": 15, "most_starts": 2}),
    ratio(OPEN, EndpointStartsUnknown, {"metric": "ttft_p50", "needed_start_sd": 0.021}),
    ratio(Verdict.ERROR, ValueZero, {"metric": "ttft_p50"}, estimate=None, interval=None),
    ratio(Verdict.ERROR, ValuesInfinite, {**GONE, "side": "b", "failed_requests": 4, **WHY}, estimate=None,
          interval=None),
    change(Verdict.PASS, estimate=0.004, interval=Interval(-0.01, 0.018, 0.95)),
    change(Verdict.PASS, facts={"deciding_runs": 8, "deciding_sessions": 3, "stored_sessions": 1, "stored_runs": 3}),
    change(FAIL, Worse),
    against_reference(Verdict.PASS, estimate=0.001, interval=Interval(-0.004, 0.006, 0.965)),
    against_reference(FAIL, WorseThanReference),
    against_reference(Verdict.IMPROVED, BetterThanReference, estimate=-0.02,
                      interval=Interval(-0.027, -0.013, 0.965)),
    against_reference(OPEN, ChangeUndecided, {"no_further_runs": "out_of_time"}, estimate=0.009,
                      interval=Interval(0.002, 0.016, 0.965)),
    change(Verdict.IMPROVED, Better, estimate=-0.08, interval=Interval(-0.1, -0.06, 0.95)),
    change(OPEN, SpreadTooLarge),
    change(OPEN, SpreadTooLarge, {"stored_sessions": 7}),
    change(Verdict.PASS, facts=NEW_HOST, estimate=0.004, interval=Interval(-0.01, 0.018, 0.95)),
    change(Verdict.PASS, facts={**NEW_HOST, "stored_hosts": 2, "host_stored": True}),
    change(FAIL, Worse, NEW_HOST | NEW_BUILD),
    change(FAIL, Worse, {**NEW_BUILD, "changed_sessions": 2, "build_changes": {"driver": ["580", "590", "600"]}}),
    *(change(FAIL, Worse, {**NEW_BUILD, "build_changes": {"engine.version": [stored, "0.33.0"]}})
      for stored in ("0.26.0", "0.32.0+cpu", "0.30.0")),
    change(OPEN, SpreadTooLarge, {**NEW_BUILD, "engine": "endpoint",
                                          "build_changes": {"engine.max_num_seqs": ["256", None]}}),
    *(change(OPEN, RunsTooFew, {"deciding_runs": 8, "deciding_sessions": 3, "no_further_runs": stop})
      for stop in STOPS),
    accuracy(Verdict.PASS, estimate=-0.001, interval=Interval(-0.008, 0.006, 0.99), after=0.919),
    accuracy(FAIL, AccuracyLost, {"claimed": "tpot_mean(b) / tpot_mean(a)", "claimed_ratio": 1.31,
                                         "claim_holds": True}),
    accuracy(FAIL, AccuracyLost, {"claimed": "tpot_mean(b) / tpot_mean(a)", "claimed_ratio": 0.97,
                                         "claim_holds": False}),
    accuracy(FAIL, AccuracyLost),
    accuracy(FAIL, AnswersDiffer, {"prompt": 8, "token": 3}),
    accuracy(FAIL, AnswersDiffer, {"prompt": 8, "token": 3, "margin": 0.34}),
    accuracy(OPEN, AnswersAlike, {"different": 3, "prompts": 400}),
    accuracy(OPEN, QuestionsTooFew, {"needed": 5000}, estimate=-0.001, after=0.919,
             interval=Interval(-0.014, 0.012, 0.99)),
    accuracy(OPEN, QuestionsTooFew, estimate=-0.01, after=0.91, interval=Interval(-0.019, 0.001, 0.99)),
    judged("accuracy(sums) >= 0.92", OPEN, "accuracy(sums)", Unit.SHARE, Comparison.AT_LEAST, 0.92, 0.919,
                Interval(0.909, 0.929, 0.95), cause=QuestionsTooFew, facts={"questions": 2000, "correct": 1838}),
    judged("accuracy(sums)", Verdict.REPORTED, "accuracy(sums)", cause=AccuracyNotEmulated),
    judged("joules_per_token <= 0.5 J", Verdict.REPORTED, "joules_per_token", Unit.J_PER_TOKEN, Comparison.AT_MOST,
                0.5, cause=EnergyNotEmulated),
    judged("joules_per_token <= 0.5 J", Verdict.PASS, "joules_per_token", Unit.J_PER_TOKEN, Comparison.AT_MOST,
                0.5, 0.431, Interval(0.42, 0.44, 0.95), facts={**RUNS, "energy_gap": 0.2}),
    judged("cost_per_million_tokens <= 0.50 USD", FAIL, "cost_per_million_tokens", Unit.COST, Comparison.AT_MOST,
                0.5, 0.937, Interval(0.93, 0.944, 0.95), cause=BeyondLimit,
           facts={**RUNS, "price": "2.5 USD 2026-11-01"}),
    judged("refuses max_model_len", Verdict.PASS, facts={**REFUSED, "log_lines": ["ValueError: max_model_len"]}),
    judged("refuses max_model_len", FAIL, cause=EngineStarted, facts={
        "refused_for": "max_model_len", "prediction": "one sequence needs 3.73 GiB, and 0.139 GiB are available"}),
    judged("refuses max_model_len", Verdict.ERROR, cause=RefusedOtherwise, facts={
        **REFUSED, "log_lines": ["OSError: no space", "RuntimeError: see above"], "log": "servers/01/server.log"}),
    judged("refuses max_model_len", Verdict.ERROR, cause=RefusedOtherwise, facts={
        **REFUSED, "log_lines": []}),
    of_cause(NoPrimaryMetric, {"runs": 3}),
    of_cause(NothingStored, {"kind": "h200"}, Verdict.NO_BASELINE),
    of_cause(ConditionsDiffer, {"differing": {"engine.version": ["0.26.0", "0.27.0"], "cuda": [None, "13.0"]},
                                       "missing_metrics": ["itl_p99"], "suggestions": {"version": "engine.version"},
                                       "same_build_suggestions": {"engine.dtyp": "engine.dtype"},
                                       "same_build": ["engine.version"]}, Verdict.INCOMPARABLE, "fingerprint"),
    of_cause(ValueNotComparable, {"text": "a run's value is missing"}, metric="tpot_mean"),
    of_cause(RunsDrift, {"p": 0.0004}, metric="tpot_mean"),
    of_cause(Stated, {"text": "the reason of a test's own check"}, FAIL, metric=""),
]
PROBLEM_FACTS = {
    TokenCountsDisagree: {"answers": 2, "of_answers": 20, "first": "usage says 16, chunks bring 8"},
    OtherModel: {"answers": 20, "of_answers": 20, "names": ["llama-8b", "alias"], "asked_model": "llama-70b",
                        "other_names": 1},
    BelowHardwareBound: {"text": "TTFT", "gpus": "1 × H200", "answers": 20, "of_answers": 20, "share": 0.79,
                                 "confidence": 0.99, "measured_ms": 0.4, "least_ms": 3.3,
                                 "bound_by": "reading 16 GB of weights"},
    RequestsFailed: {"answers": 3, "of_answers": 20, "text": "2 × reset, 1 × timeout", "first": "reset by peer"},
    AnswersNotStreamed: {"answers": 19, "of_answers": 20, "limit": 0.1},
    RequestsSentLate: {**LOAD, "measured_ms": 8.25, "limit_ms": 5.0},
    SlotsEmpty: {**LOAD, "own_cpus": True, "busy": 0.2, "measured_ms": 8.25, "limit_ms": 5.0, "share": 0.024,
                        "share_limit": 0.01},
    ClocksUncertain: {"measured_ms": 7.25, "limit_ms": 5.0, "clock_error_ms": 7.1,
                             "load_host": "10.0.0.7 (load-2)"},
    ArrivalsStampedLate: {**LOAD, "measured_ms": 3.25, "limit_ms": 2.0, "kernel_stamped": 0.4},
    ChunksCoalesced: {**LOAD, "share": 0.31, "limit": 0.1},
    LoadProcessSuspended: {"measured_ms": 812.0, "limit_ms": 250.0},
    ServerRestarted: {"text": "its counters fell"},
    ServiceScaled: {"text": "replica 10.0.0.5:8000 vanished (ConnectError: refused)"},
    ReplicaIdle: {"replica": "2", "replicas": 4, "requests": 300, "router": "nginx with policy consistent_hash"},
    CacheNotEmpty: {"hit_rate": 0.62, "most_hit_rate": 0.1, "by_usage": True},
    LmcacheUnused: {"reuse": 0.8, "hit_rate": 0.02},
    Preemptions: {"count": 12.0},
    ForeignRequests: {"counted": 130.0, "count": 100},
    TokensMiscounted: {"counted": 2_345_678.0, "count": 2_345_600},
    GpuContended: {"text": "process 4711 (python) used 12 GB"},
    GpuThrottled: {"throttle_reasons": ["hw_slowdown"], "samples": 3, "of_samples": 40, "temperature_c": 91},
    GpuFault: {"text": "Xid 63 on GPU 0"},
    GpusMixed: {"names": ["H100", "H200"]},
    GpuPartitioned: {"gpu": 0, "text": "H100"},
    GpuSettingsChanged: {"gpu": 0, "settings": ["power_limit_w 700 → 500"]},
    NotSteady: {"first_run": 1, "last_run": 5, "start_id": 1, "metric": "tpot_mean",
                       "levels": [7.6, 7.2, 6.6, 6.4, 6.3], "drift": -0.17, "p": 0.0002},
}


def invalid(*problems):
    return judged("valid runs", Verdict.ERROR, metric="validity", cause=RunsInvalid, problems=problems)


REFUSED_REQUESTS = {"answers": 3, "of_answers": 20, "first": "HTTP 429"}
VARIANTS = [  # further wordings of a cause
    problem_of(RequestsFailed, {**REFUSED_REQUESTS, "text": "3 × rate limited", "rate_limited_answers": 3}),
    problem_of(NotSteady, {**PROBLEM_FACTS[NotSteady], **HERE, "before": 1}),
    problem_of(NotSteady, {**PROBLEM_FACTS[NotSteady], **HERE, "before": 2}),
    problem_of(NotSteady, {**PROBLEM_FACTS[NotSteady], **HERE, "beginning": True}),
    problem_of(RequestsFailed, {**REFUSED_REQUESTS, "text": "2 × rate limited, 1 × reset",
                                    "rate_limited_answers": 2}),
]
FAILED = problem_of(RequestsFailed, {**PROBLEM_FACTS[RequestsFailed], **HERE, "side": "A"})
RESULTS.append(invalid(FAILED, problem_of(Preemptions, {"count": 3.0, **HERE}), FAILED))


def named(result):
    return result.cause.name if result.cause else result.verdict.value


def lines():
    for result in RESULTS:
        figures = filter(None, (limit_text(result), estimate_text(result), interval_text(result), basis_text(result)))
        yield f"{named(result)}: {' | '.join(figures)}"
        if result.cause:
            yield f"    {reason_text(result)}"
    for cause, facts in PROBLEM_FACTS.items():
        yield f"{cause.name}: {problem_text(problem_of(cause, {**facts, **HERE}))}"
    yield from (f"{problem.fault.name}: {problem_text(problem)}" for problem in VARIANTS)


def test_sentences_equal_golden_file():
    assert list(lines()) == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_every_cause_has_sentence_and_example():
    examples = {type(result.cause) for result in RESULTS} | PROBLEM_FACTS.keys()
    assert examples == {*CAUSES.values(), *FAULTS.values(), type(None)}


@pytest.mark.parametrize("problem", [FAILED, problem_of(ServerRestarted, {"text": "its counters fell", **HERE})],
                         ids=lambda problem: problem.fault.name)
def test_cause_of_invalid_runs_is_first_problem(problem):
    text = cause_text(invalid(problem, FAILED))
    assert problem_text(problem).startswith(text)
    assert "run 2 (seed 1): " in text


def test_run_file_without_numbers_keeps_stored_texts():
    texts = {"limit": "≤ 5 ms", "measured": "4 ms", "interval": "90 % CI 3–5 ms", "n": "3 runs"}
    result = CheckResult("tpot_mean <= 5ms", Verdict.PASS, facts={"texts": texts})
    assert [limit_text(result), estimate_text(result), interval_text(result), basis_text(result)] == [*texts.values()]


@pytest.mark.parametrize("result", RESULTS, ids=named)
def test_stored_check_is_read_back_equal(result):
    text = json.dumps(check_json(result), allow_nan=False)
    assert check_from(parse(text.encode(), "junit.xml")) == result


def test_stored_problem_of_every_cause_is_read_back_equal():
    result = invalid(*(problem_of(cause, {**facts, **HERE}) for cause, facts in PROBLEM_FACTS.items()))
    text = json.dumps(check_json(result), allow_nan=False)
    assert check_from(parse(text.encode(), "junit.xml")) == result


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n", encoding="utf-8")
