"""Is a run valid? Checked before any statistics. A metric that a check names is judged by that check instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.run_gates import gpu_problems, impossible, load_generator_problems
from pytest_llmperf.judging.steadiness import unsteady_starts
from pytest_llmperf.metrics import RunMetrics
from pytest_llmperf.metrics.by_replica import ANSWERS
from pytest_llmperf.metrics.families import output_tokens, prompt_tokens
from pytest_llmperf.metrics.recovery import RECOVERY
from pytest_llmperf.model.record import Outcome, RequestRecord, failure_counts, reasons_text
from pytest_llmperf.results.causes.runs import (
    AnswersNotStreamed,
    CacheNotEmpty,
    ForeignRequests,
    LmcacheUnused,
    OtherModel,
    Preemptions,
    ReplicaIdle,
    RequestsFailed,
    ServerRestarted,
    ServiceScaled,
    TokenCountsDisagree,
    TokensMiscounted,
)
from pytest_llmperf.results.check import Fault, Problem
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.slo.model import Comparison, Mechanism, Slo

HIT_RATE_SLACK = 0.02
#: A limit from below lets any excess of these through, and a ratio does: only a limit from above judges it.
EXCESS = ("prefix_cache_hit_rate", "send_delay")
STREAMED = ("ttft", "tpot")  # what exists only where an answer comes token by token
LEAST_REQUESTS_EACH = 10  # of fewer for each replica, a router may send one none by chance
LEAST_REUSE = 0.1  # of less, a cache that is small or late may miss it all


def judged_by_comparison(metrics: Iterable[str]) -> set[str]:
    """Metrics that a comparison judges or shows. A deviation of such a metric is no ERROR."""
    return {metric for metric in metrics if not metric.startswith(EXCESS)}


def judged_by_requirements(requirements: Iterable[Slo | Mechanism]) -> set[str]:
    """Metrics that these requirements judge. A deviation of such a metric is a FAIL instead of an ERROR."""
    judged_metrics: set[str] = set()
    for requirement in requirements:
        metrics = requirement.named if isinstance(requirement, Slo) else {requirement.metric}
        judged_metrics |= judged_by_comparison(metrics) if requirement.comparison is Comparison.AT_LEAST else metrics
    return judged_metrics


def validity_problems(measurement: Measurement, named: Collection[str], settings: Settings) -> list[Problem]:
    """Why this measurement is invalid; empty if it is valid.

    Args:
        measurement: the runs.
        named: metrics that the test names in an SLO, a claim or a mechanism check (`judged_by_requirements`,
            `judged_by_comparison`): their deviations are a FAIL, not an ERROR.
        settings: the limits of the validity checks.
    """
    problems = [
        Problem(fault, run=number, seed=run.seed)
        for number, (run, metrics) in enumerate(zip(measurement.runs, measurement.metrics, strict=True), start=1)
        for fault in _run_faults(measurement, run, metrics, named, settings)
    ]
    return problems or list(map(Problem, unsteady_starts(measurement)))


def _run_faults(
    measurement: Measurement, run: Run, metrics: RunMetrics, named: Collection[str], settings: Settings
) -> Iterator[Fault]:
    yield from _contradictions(run)
    if (foreign_model := other_model(run.records, run.model_names)) is not None:
        yield foreign_model
    if measurement.bound is not None:
        yield from impossible(run, measurement.bound)
    if (text := _scaling(measurement, run)) is not None:
        yield ServiceScaled(text)
    yield from _failed_requests(run, named)
    yield from _unstreamed_answers(run, named, settings)
    yield from load_generator_problems(run, metrics, named, settings)
    yield from _server_problems(measurement, run, metrics, named)
    if run.gpu is not None:
        yield from gpu_problems(run.gpu, measurement.runs[0].gpu)


def _contradictions(run: Run) -> Iterator[Fault]:
    """A server whose numbers contradict each other is broken; no limit on the error rate judges that."""
    disagreeing = [record for record in run.records if record.outcome is Outcome.COUNTS_DISAGREE]
    if disagreeing:
        yield TokenCountsDisagree(len(disagreeing), len(run.records), _detail(disagreeing[0]))


def _detail(record: RequestRecord) -> str:
    return record.detail or record.outcome.value


def other_model(records: Sequence[RequestRecord], names: Sequence[str]) -> OtherModel | None:
    """Answers that another model gave; None if every answer or no answer names the requested model.

    A request of `across_models` asks for its own model.

    Args:
        records: of one run.
        names: how chunks may call the model, the requested name first; empty if the names are not known.
    """
    others = Counter(
        (name, record.asked_model or names[0]) for record in records for name in record.models
        if names and name not in ((record.asked_model,) if record.asked_model else names)
    )
    if not others:
        return None
    [((name, requested), count)] = others.most_common(1)
    return OtherModel(count, len(records), [name, *names[1:]], requested, len({other for other, _ in others}) - 1)


def _failed_requests(run: Run, named: Collection[str]) -> Iterator[Fault]:
    """Failed requests that no named metric judges; refusals have a metric of their own."""
    if {"goodput", "slo_attainment", RECOVERY} & set(named):
        return
    judged = {Outcome.COUNTS_DISAGREE} | ({Outcome.RATE_LIMITED} if "rate_limited_rate" in named else set())
    others_judged = "error_rate" in named
    failed = [record for record in run.records if record.failed and record.outcome not in judged
              and not (others_judged and record.outcome is not Outcome.RATE_LIMITED)]
    if failed:
        limited = sum(record.outcome is Outcome.RATE_LIMITED for record in failed)
        yield RequestsFailed(len(failed), len(run.records), _detail(failed[0]), reasons_text(failure_counts(failed)),
                             limited or None)


def _unstreamed_answers(run: Run, named: Collection[str], settings: Settings) -> Iterator[Fault]:
    """A problem if too many answers arrived in a single read, because such answers show no TTFT and no time per
    token."""
    if not any(name.startswith(STREAMED) for name in named):
        return
    several = [record for record in run.records if record.ok and not record.whole and (output_tokens(record) or 0) > 1]
    whole = sum(record.arrivals_ns[0] == record.arrivals_ns[-1] for record in several)
    if whole > settings.coalesced_limit * len(several):
        yield AnswersNotStreamed(whole, len(several), settings.coalesced_limit)


def _scaling(measurement: Measurement, run: Run) -> str | None:
    """Which replicas appeared or vanished; None if run and measurement had the same replicas all the time."""
    first = measurement.runs[0]
    if run.scaled is not None or run.replicas.keys() == first.replicas.keys():
        return run.scaled
    changes = [f"replica {name} vanished" for name in first.replicas if _is_missed(name, first, run)]
    changes += [f"replica {name} appeared" for name in run.replicas if _is_missed(name, run, first)]
    return f"{', '.join(changes)} since the first run" if changes else None


def _is_missed(name: str, run: Run, other: Run) -> bool:
    """Whether a replica of `run` is not in the other run. A replica that answers name is in a run only if it answered,
    so a replica with few answers can be missed by chance."""
    if name in other.replicas:
        return False
    answers = run.replicas[name].get(ANSWERS)
    return answers is None or answers * len(other.records) >= LEAST_REQUESTS_EACH * len(run.records)


def _server_problems(
    measurement: Measurement, run: Run, metrics: RunMetrics, named: Collection[str]
) -> Iterator[Fault]:
    if run.restarted:
        yield ServerRestarted(run.restarted)
    if "replica_imbalance" not in named:
        yield from _idle_replica(measurement, run)
    if "prefix_cache_hit_rate" not in named:
        yield from _unexpected_cache_hits(run, metrics)
    yield from _unused_lmcache(measurement, run, metrics, named)
    preemptions = metrics.value("preemptions")
    if preemptions and "preemptions" not in named and not measurement.may_preempt:
        yield Preemptions(preemptions)
    yield from _token_count_mismatch(run)


def _idle_replica(measurement: Measurement, run: Run) -> Iterator[Fault]:
    """A replica of a deployment without any of many requests. A service may have reasons that no session knows."""
    router = measurement.conditions.get("router")
    if router is None or len(run.records) < LEAST_REQUESTS_EACH * len(run.replicas):
        return
    idle = [name for name, counters in run.replicas.items() if counters.get("requests_finished") == 0]
    if idle:
        policy = measurement.conditions.get("router.policy", "")
        yield ReplicaIdle(idle[0], len(run.replicas), len(run.records), f"{router} with policy {policy}")


def _unexpected_cache_hits(run: Run, metrics: RunMetrics) -> Iterator[Fault]:
    """More hits than these requests can have, by the counters or else by the usage of the answers."""
    counted, most = metrics.value("prefix_cache_hit_rate"), run.expected_hit_rate
    hit_rate = _hit_rate_by_usage(run) if counted is None else counted
    sent_once = all(record.attempts == 1 for record in run.records)  # a prompt that is sent again may be cached
    if sent_once and hit_rate is not None and most is not None and hit_rate > most + HIT_RATE_SLACK:
        yield CacheNotEmpty(hit_rate, most, counted is None)


def _hit_rate_by_usage(run: Run) -> float | None:
    """The smallest hit rate that the usage proves: some servers omit a count of 0, and failed requests have none."""
    cached = prompts = 0
    for record in run.records:
        prompt = prompt_tokens(record)
        if not prompt:
            return None
        cached += record.cached_tokens or 0
        prompts += prompt
    return cached / prompts if prompts else None


def _unused_lmcache(
    measurement: Measurement, run: Run, metrics: RunMetrics, named: Collection[str]
) -> Iterator[Fault]:
    """LMCache had no hit although prompts repeat and the engine's own cache did not have them."""
    reuse, hits = measurement.lmcache_reuse, run.counters.get("external_cache_hits")
    engine_hit_rate = metrics.value("prefix_cache_hit_rate") or 0.0
    judged = {"external_cache_hit_rate", "external_cached_tokens", "lmcache_hit_rate"} & set(named)
    if not judged and hits == 0 and reuse is not None and reuse >= LEAST_REUSE and engine_hit_rate < reuse / 2:
        yield LmcacheUnused(reuse, engine_hit_rate)


def _token_count_mismatch(run: Run) -> Iterator[Fault]:
    """Requests and tokens that the answers report, compared with the server's counters."""
    counted = run.counters.get("generation_tokens")
    finished = run.counters.get("requests_finished")
    if counted is None or not all(record.ok for record in run.records):
        return
    claimed = sum(record.output_tokens or 0 for record in run.records)
    answers = sum(record.choices for record in run.records)  # vLLM counts each answer of a request with n > 1
    if finished is not None and finished not in (len(run.records), answers):
        yield ForeignRequests(finished, answers)
    elif claimed != counted:
        yield TokensMiscounted(claimed, counted)
