"""What a claim needs before and after its sides are measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pytest_llmperf.engines.control.running_server import RunningServer
from pytest_llmperf.judging.baseline_comparison import margins_from
from pytest_llmperf.judging.claim_judge import ClaimJudge, claim_judge
from pytest_llmperf.judging.outcome import with_unseen_gpu
from pytest_llmperf.judging.validity import judged_by_requirements
from pytest_llmperf.model.engine import Endpoint, EngineSpec
from pytest_llmperf.session.accuracy import AccuracyGuards
from pytest_llmperf.session.arguments import (
    check_energy_is_seen,
    check_engine,
    check_price,
    check_runs,
    check_sides_differ,
    check_streamed,
    check_workload,
    spec_of,
    texts_of,
)
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.sequential_claim import ClaimResult, judge_sequentially
from pytest_llmperf.session.series import Series
from pytest_llmperf.workload import Workload

#: A claim that names one of these is about memory, which no server beside it may take.
MEMORY_METRICS = frozenset({"kv_blocks", "kv_cache_tokens", "kv_usage_peak", "preemptions", "startup_s"})
#: Metrics that show what memory or time a server takes alone. A server beside others has less of the memory.
SIZES = MEMORY_METRICS - {"preemptions"}


def read_claim(
    execution: Execution,
    call: str,
    sides: tuple[RunningServer | EngineSpec, RunningServer | EngineSpec, Workload, str],
    *,
    mechanism: str | Sequence[str] = (),
    allow: Mapping[str, float] | None = None,
    guards: Mapping[str, float] | None = None,
    start_sd: Mapping[str, float] | None,
    runs: int,
) -> ClaimJudge:
    """Read a claim, so that a typo costs no server start.

    Args:
        execution: of the test.
        call: the verb, for messages.
        sides: A, B, the workload and the text of the claim.
        mechanism, allow, guards, start_sd, runs: as in `Perf.claim`.

    Raises:
        SloError, SpecError: an argument is invalid.
    """
    a, b, workload, text = sides
    check_engine(a, f"{call}(…, b, workload, text)")
    check_engine(b, f"{call}(a, …, workload, text)")
    check_workload(workload, f"{call}(a, b, …)")
    check_runs(runs, call)
    judge = claim_judge(
        text, texts_of(mechanism, "mechanism"), {} if allow is None else allow, execution.session.settings,
        kind=_serving_kind(execution.kind, a, b), margins=margins_from(guards),
        start_sd={} if start_sd is None else start_sd,
        restartable=not any(isinstance(spec_of(side), Endpoint) for side in (a, b)),
    )
    check_price([judge.claim, *judge.causes, *judge.prices], execution.session.settings)
    if execution.session.hardware.emulated:
        check_energy_is_seen(judge.metrics, text)
    return judge


def check_sides(
    execution: Execution, a: RunningServer | EngineSpec, b: RunningServer | EngineSpec, metrics: Collection[str]
) -> None:
    """Refuse equal sides, sides that cannot start here, and metrics that a side does not have.

    Raises:
        SpecError: names what is wrong.
    """
    check_sides_differ(a, b)
    for spec in (a, b):
        check_streamed(spec_of(spec), metrics)
        if isinstance(spec, EngineSpec):
            execution.session.pool.check(spec.on(execution.kind))


def specs_beside(
    execution: Execution, a: RunningServer | EngineSpec, b: RunningServer | EngineSpec, judge: ClaimJudge, *,
    may_preempt: bool,
) -> tuple[tuple[EngineSpec, ...], str]:
    """The specs whose servers live together in a claim: both sides, and in a session with a reference build A's.

    Without a reference build each side runs alone in a claim about memory and in a test that compares with a stored
    baseline. A stored baseline is of a server alone. The second value is the reason why each side runs alone; ""
    where the sides live together, or a side is a running server, or both are services.
    """
    session, spec = execution.session, spec_of(a)
    reference = session.reference_of(spec)
    if reference is not None:
        return (spec, spec_of(b), reference), ""
    if not (isinstance(a, EngineSpec) and isinstance(b, EngineSpec)) or (a.is_endpoint and b.is_endpoint):
        return (), ""
    if reason := execution.reason_to_run_alone(judge.metrics & MEMORY_METRICS, may_preempt=may_preempt):
        execution.note_alone(2, reason)
        return (), reason
    if b in execution.beside.get(a, ()):
        return execution.beside[a], ""
    reason = session.reason_apart((a.on(execution.kind), b.on(execution.kind)))
    return (() if reason else (a, b)), reason


def judged_claim(
    execution: Execution, judge: ClaimJudge, text: str, side_a: Series, side_b: Series, *,
    runs: int, accuracy: AccuracyGuards,
) -> ClaimResult:
    """Measure both sides, judge the claim and add its results to the test.

    Raises:
        InfrastructureError: a server or the load generator failed.
    """
    side_a.judged_metrics |= judged_by_requirements(cause for cause in judge.causes if cause.side == "a")
    side_b.judged_metrics |= judged_by_requirements(cause for cause in judge.causes if cause.side == "b")
    execution.claims.append((text, side_a, side_b))
    judged = judge_sequentially(judge, execution, side_a, side_b, runs, accuracy=accuracy)
    measured = side_b if side_a.measurement is None else side_a  # one side alone may have decided the claim
    results = [with_unseen_gpu(result, measured.finished.conditions) for result in judged]
    execution.add_results(results)
    return ClaimResult(tuple(results), side_a.measurement, side_b.measurement)


def _serving_kind(kind: str, a: RunningServer | EngineSpec, b: RunningServer | EngineSpec) -> str:
    """The hardware kind of a claim's sides; of two that differ a CPU, which is the noisier."""
    specs = [spec_of(side) for side in (a, b)]
    kinds = [spec.serving_kind(kind) for spec in specs]
    return kind if kind in kinds else kinds[0]
