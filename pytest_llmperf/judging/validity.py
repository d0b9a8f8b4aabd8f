"""Is a run evidence at all? Asked before any statistics; what a check names is judged there instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.gpu_gates import gpu_problems
from pytest_llmperf.judging.possible import impossible
from pytest_llmperf.judging.saturation import load_generator_problems
from pytest_llmperf.judging.steadiness import steadiness_problems
from pytest_llmperf.metrics import RunMetrics
from pytest_llmperf.metrics.families import output_tokens, prompt_tokens
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.slo.model import Comparison, Mechanism, Slo

HIT_RATE_SLACK = 0.02
#: A limit from below lets any excess of these through, and a ratio does: only a limit from above judges it.
EXCESS = ("prefix_cache_hit_rate", "send_delay")
STREAMED = ("ttft", "tpot")  # what exists only where an answer comes token by token
SHOWN_NAME = 80  # characters of a model's name
LEAST_REUSE = 0.1  # of less, a cache that is small or late may miss it all


def judged_by_comparison(metrics: Iterable[str]) -> set[str]:
    """Of metrics that are set against others or only shown: those whose deviations are judged by that."""
    return {metric for metric in metrics if not metric.startswith(EXCESS)}


def judged_by_requirements(demands: Iterable[Slo | Mechanism]) -> set[str]:
    """Metrics whose deviations these demands judge, so that they are a FAIL and no ERROR."""
    judged_metrics: set[str] = set()
    for demand in demands:
        metrics = demand.named if isinstance(demand, Slo) else {demand.metric}
        judged_metrics |= judged_by_comparison(metrics) if demand.comparison is Comparison.AT_LEAST else metrics
    return judged_metrics


def validity_problems(measurement: Measurement, named: Collection[str], settings: Settings) -> list[str]:
    """Why this measurement is no evidence; empty where it is.

    Args:
        named: metrics that the test names as SLO, claim or mechanism (`judged_by_requirements`, `compared`): a
            deviation there is a FAIL, not an ERROR.
    """
    sentences = []
    for number, (run, metrics) in enumerate(zip(measurement.runs, measurement.metrics, strict=True), start=1):
        for problem in _run_problems(measurement, run, metrics, named, settings):
            sentences.append(f"run {number} (seed {run.seed}): {problem}")
    return sentences or list(steadiness_problems(measurement))


def _run_problems(
    measurement: Measurement, run: Run, metrics: RunMetrics, named: Collection[str], settings: Settings
) -> Iterator[str]:
    yield from _contradictions(run)
    if (stranger := other_model(run.records, run.model_names)) is not None:
        yield stranger
    if measurement.bound is not None:
        yield from impossible(run, measurement.bound)
    yield from _failed_requests(run, named)
    yield from _unstreamed_answers(run, named, settings)
    yield from load_generator_problems(run, metrics, named, settings)
    yield from _server_problems(measurement, run, metrics, named)
    if run.gpu is not None:
        yield from gpu_problems(run.gpu, measurement.runs[0].gpu)


def _contradictions(run: Run) -> Iterator[str]:
    """A server whose numbers contradict each other is broken; no limit on errors judges that."""
    disagreeing = [record for record in run.records if record.outcome is Outcome.COUNTS_DISAGREE]
    if disagreeing:
        yield (
            f"token counts disagree in {len(disagreeing)} of {len(run.records)} answers "
            f"(first: {disagreeing[0].detail}): the server, or what lies before it, reports other tokens than it sends."
        )


def other_model(records: Sequence[RequestRecord], names: Sequence[str]) -> str | None:
    """Why answers do not come from the model that was asked for; None where they do, and where no chunk names a model.

    Args:
        names: how chunks may call the model, the requested name first; empty where nobody knows.
    """
    others = Counter(name for record in records for name in record.models if names and name not in names)
    if not others:
        return None
    [(name, count)] = others.most_common(1)
    more = f" (and {len(others) - 1} other names)" if len(others) > 1 else ""
    declared = f"; declared: {', '.join(map(repr, names[1:]))}" if names[1:] else ""
    return (
        f"{count} of {len(records)} answers came from model {shortened(name)}{more}, and {names[0]!r} was asked for"
        f'{declared}. If both are one model, declare the name: model_alias="…" in the engine or endpoint.'
    )


def shortened(name: str) -> str:
    """A name that a server gave, as a message can show it."""
    return repr(name if len(name) <= SHOWN_NAME else name[:SHOWN_NAME] + "…")


def _failed_requests(run: Run, named: Collection[str]) -> Iterator[str]:
    failed = [record for record in run.records if not (record.ok or record.outcome is Outcome.COUNTS_DISAGREE)]
    if failed and not {"error_rate", "goodput", "slo_attainment"} & set(named):
        kinds = Counter(record.outcome.value for record in failed).most_common()
        summary = ", ".join(f"{count} × {kind}" for kind, count in kinds)
        yield (
            f"{len(failed)} of {len(run.records)} requests failed ({summary}; first: {failed[0].detail}). "
            'Name "error_rate == 0" in the check to have it judged as an SLO.'
        )


def _unstreamed_answers(run: Run, named: Collection[str], settings: Settings) -> Iterator[str]:
    """Answers of several tokens whose first and last came at once show neither a first token nor a time per token."""
    if not any(name.startswith(STREAMED) for name in named):
        return
    several = [record for record in run.records if record.ok and (output_tokens(record) or 0) > 1]
    whole = sum(record.arrivals_ns[0] == record.arrivals_ns[-1] for record in several)
    if whole > settings.coalesced_limit * len(several):
        yield (
            f"{whole} of {len(several)} answers of several tokens came in one piece (limit "
            f"{settings.coalesced_limit:.0%}): nobody saw when their first token was there, nor their time per output "
            "token. Does the server stream token by token, and what lies before it pass them on at once? Where answers "
            "come whole, limit E2E latency."
        )


def _server_problems(measurement: Measurement, run: Run, metrics: RunMetrics, named: Collection[str]) -> Iterator[str]:
    if run.restarted:
        yield f"the server restarted itself: {run.restarted} between two readings."
    if "prefix_cache_hit_rate" not in named:
        yield from _unexpected_cache_hits(run, metrics)
    yield from _unused_lmcache(measurement, run, metrics, named)
    preemptions = metrics.value("preemptions")
    if preemptions and "preemptions" not in named and not measurement.may_preempt:
        yield (
            f"{preemptions:g} preemptions: the KV cache was too small for this load. Name them in the check, "
            "or allow them with perf.measure(…, may_preempt=True)."
        )
    yield from _token_count_mismatch(run)


def _unexpected_cache_hits(run: Run, metrics: RunMetrics) -> Iterator[str]:
    """More hits than these requests can have, by the counters or else by the usage of the answers."""
    counted, most = metrics.value("prefix_cache_hit_rate"), run.expected_hit_rate
    hit_rate = _hit_rate_by_usage(run) if counted is None else counted
    if hit_rate is not None and most is not None and hit_rate > most + HIT_RATE_SLACK:
        source = " by the usage of the answers" if counted is None else ""
        yield (
            f"prefix-cache hit rate {hit_rate:.1%}{source}, where these requests can have {most:.1%} at most: "
            "prompts of an earlier run were still cached."
        )


def _hit_rate_by_usage(run: Run) -> float | None:
    """The least that the answers' usage proves: some servers leave a 0 out of it, and failed requests have none."""
    cached = prompts = 0
    for record in run.records:
        prompt = prompt_tokens(record)
        if not prompt:
            return None
        cached += record.cached_tokens or 0
        prompts += prompt
    return cached / prompts if prompts else None


def _unused_lmcache(measurement: Measurement, run: Run, metrics: RunMetrics, named: Collection[str]) -> Iterator[str]:
    """Attached, and idle although prompts repeat and the engine's own cache did not have them."""
    reuse, hits = measurement.lmcache_reuse, run.counters.get("external_cache_hits")
    engine_hit_rate = metrics.value("prefix_cache_hit_rate") or 0.0
    judged = {"external_cache_hit_rate", "external_cached_tokens", "lmcache_hit_rate"} & set(named)
    if not judged and hits == 0 and reuse is not None and reuse >= LEAST_REUSE and engine_hit_rate < reuse / 2:
        yield (
            f"LMCache is attached and never hit: {reuse:.0%} of the prompt tokens repeat, and the engine computed "
            f"all but {engine_hit_rate:.0%}."
        )


def _token_count_mismatch(run: Run) -> Iterator[str]:
    """What the answers claim against what the server counted."""
    counted = run.counters.get("generation_tokens")
    finished = run.counters.get("requests_finished")
    if counted is None or not all(record.ok for record in run.records):
        return
    claimed = sum(record.output_tokens or 0 for record in run.records)
    if finished is not None and finished != len(run.records):
        yield f"the server finished {finished:g} requests and {len(run.records)} were ours: somebody else uses it."
    elif claimed != counted:
        yield f"answers claim {claimed} generated tokens, the server counted {counted:g}."
