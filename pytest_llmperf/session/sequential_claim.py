"""Read a claim, and measure both sides with as many runs as the claim takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pytest_llmperf.engines.control.running_server import RunningServer
from pytest_llmperf.judging.baseline_comparison import margins_from
from pytest_llmperf.judging.claim_judge import ClaimJudge, claim_judge, judge_pooled_executions, paired_sides
from pytest_llmperf.judging.outcome import with_unseen_gpu
from pytest_llmperf.judging.sample import unverified
from pytest_llmperf.judging.validity import judged_by_requirements
from pytest_llmperf.model.engine import Endpoint, EngineSpec
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.comparisons import EndpointStartsUnknown, RatioNearLimit, StartsTooFew
from pytest_llmperf.results.check import CheckResult, NoFurtherRuns, worst
from pytest_llmperf.results.conditions import kind_of, server_kind
from pytest_llmperf.results.measurement import Measurement
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
from pytest_llmperf.session.executions import Execution, failed_subjects
from pytest_llmperf.session.resumption import take_side
from pytest_llmperf.session.series import Series, run_in_turn
from pytest_llmperf.stats.ratio import StartSd
from pytest_llmperf.workload import Workload

# One claim errs in at most 1 % of cases on either side, however often it is looked at (Bonferroni over the looks). Half
# goes to the first look, where most claims are decided and three pairs leave the least to spend.
ALPHA_OF_LOOKS = (0.005, 0.0025, 0.0025)
# Server starts of each side after the last look: of servers that live together, and of servers that take turns.
MOST_STARTS_TOGETHER, MOST_STARTS = len(ALPHA_OF_LOOKS), 2
# The needed starts are an estimate. By simulation (docs/evidence/claims.md) a claim that ends where they are more than
# so many times the possible starts makes 4 pairs instead of 9 at its limit. At most 4 % of claims lose their decision.
VAIN = 2


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What `perf.claim` returns.

    Args:
        results: of the mechanisms, the claim, its prices and its guards; one ERROR where runs are invalid.
        a: measurement of side A; None if side B alone decided against the claim.
        b: measurement of side B; None if side A alone decided against the claim.
    """

    results: tuple[CheckResult, ...]
    a: Measurement | None
    b: Measurement | None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the results."""
        return worst(self.results)


def judge_sequentially(
    judge: ClaimJudge, execution: Execution, side_a: Series, side_b: Series, runs: int, *,
    accuracy: AccuracyGuards,
) -> list[CheckResult]:
    """Measure both sides and judge; measure again as long as the claim is undecided and time allows.

    A first side that is invalid, or whose mechanism did not work, ends the claim before the other side starts.

    Args:
        runs: of each side at each look.
        accuracy: asks each side its questions after the first runs of the side, on the same server start.

    Raises:
        InfrastructureError: a server or the load generator failed.
    """
    results = _judged_sides(judge, execution, side_a, side_b, runs, accuracy=accuracy)
    claimed = next((result for result in results if result.subject == judge.claim.text), None)
    return [*results, *accuracy.results(claimed)]


def _judged_sides(
    judge: ClaimJudge, execution: Execution, side_a: Series, side_b: Series, runs: int, *,
    accuracy: AccuracyGuards,
) -> list[CheckResult]:
    """The results of a claim without its accuracy guards."""
    started_ns = execution.session.clock.now_ns()
    if _live_together(execution, side_a, side_b):
        results = _looks(judge, execution, [side_a, side_b], runs, started_ns, together=True)
        for side in (side_a, side_b):
            accuracy.ask(side)
        return results
    # The side whose server already runs goes first: a start takes minutes. A resumed claim keeps its order.
    begun = side_a.stored_block or side_b.stored_block
    b_runs = isinstance(side_b.engine, EngineSpec) and execution.session.pool.runs(side_b.engine)
    b_first = side_b.stored_block == 1 if begun else b_runs
    if not accuracy.tasks:
        b_first = _take_over_sides(execution, side_a, side_b) or b_first
    first, second = (side_b, side_a) if b_first else (side_a, side_b)
    if first.measurement is None:
        first.extend(runs, block=1)
    if results := judge.alone(first.finished.only(lambda run: run.block is not None)):
        return results
    accuracy.ask(first)
    if second.measurement is None:
        second.extend(runs, block=2)
    accuracy.ask(second)
    return _looks(judge, execution, [first, second], runs, started_ns, together=False)


def _take_over_sides(execution: Execution, side_a: Series, side_b: Series) -> bool:
    """Go on from the sides that an interrupted command measured to their end. Returns whether B is the only one."""
    for side in (side_a, side_b):
        if isinstance(side.engine, EngineSpec) and not side.engine.is_endpoint:
            side.keep_side(take_side(execution.sides, side.side, str(side.engine), str(side.workload)))
    return side_a.measurement is None and side_b.measurement is not None


def _live_together(execution: Execution, side_a: Series, side_b: Series) -> bool:
    """Whether the servers of both sides run at the same time. Running services always do."""
    if all(spec_of(side.engine).is_endpoint for side in (side_a, side_b)):
        return True
    a, b = side_a.engine, side_b.engine
    if not (isinstance(a, EngineSpec) and isinstance(b, EngineSpec) and side_a.beside):
        return False
    return execution.session.pool.lives_beside(a, [b])


def _looks(
    judge: ClaimJudge, execution: Execution, order: Sequence[Series], runs: int, started_ns: int, *, together: bool
) -> list[CheckResult]:
    """Look at the claim, and measure again where it stays open; servers that live together have no runs yet."""
    session = execution.session
    side_a, side_b = sorted(order, key=lambda side: side.side)
    block = 1
    if together:
        block = run_in_turn(order, runs, block, together=True)
    else:
        block += len(order)
    judge = judge.learning(partial(_stored_start_sd, execution, side_a.finished.conditions))
    results: list[CheckResult] = []
    for look, alpha in enumerate(ALPHA_OF_LOOKS):
        if look:
            order = order[::-1]
            if together and _lack_starts(results):
                session.pool.release()
            # Of two servers that run one after the other, one goes on and the other starts anew: their ages differ.
            block = run_in_turn(order, runs, block, together=together, steady=not together)
        results = _judge_pooled(judge, execution, side_a, side_b, alpha)
        if worst(results) is not Verdict.INCONCLUSIVE or look == len(ALPHA_OF_LOOKS) - 1:
            break
        if (session.clock.now_ns() - started_ns) / 1e9 >= session.settings.extension_limit_s:
            return [_out_of_time(result) for result in results]
        if any(unverified(judge.judged, side.finished.metrics) for side in order):
            break  # no further run confirms a token count
        most_starts = MOST_STARTS_TOGETHER if together else MOST_STARTS
        if all(in_vain(result, most_starts) for result in results if result.verdict is Verdict.INCONCLUSIVE):
            return [_with_most_starts(result, most_starts) for result in results]
    return results


def _lack_starts(results: Sequence[CheckResult]) -> bool:
    """Whether more server starts, and not more pairs on the same starts, would decide an open result."""
    return any(isinstance(result.cause, StartsTooFew) for result in results
               if result.verdict is Verdict.INCONCLUSIVE)


def in_vain(result: CheckResult, most_starts: int) -> bool:
    """Whether an open result needs many more server starts of each side than a claim makes."""
    cause = result.cause
    if isinstance(cause, StartsTooFew):
        return cause.needed_starts > VAIN * most_starts
    if isinstance(cause, EndpointStartsUnknown) and cause.needed_start_sd is not None:
        return VAIN * cause.needed_start_sd**2 < result.facts.get("start_sd", 0.0) ** 2
    return isinstance(cause, RatioNearLimit)


def _with_most_starts(result: CheckResult, most_starts: int) -> CheckResult:
    if not isinstance(result.cause, StartsTooFew):
        return result
    return replace(result, cause=replace(result.cause, most_starts=most_starts))


def _out_of_time(result: CheckResult) -> CheckResult:
    """An open result with the fact that the time limit kept it from further pairs."""
    if result.verdict is not Verdict.INCONCLUSIVE:
        return result
    return replace(result, facts=result.facts | {"no_further_runs": NoFurtherRuns.OUT_OF_TIME.value})


def _stored_start_sd(execution: Execution, conditions: Mapping[str, str], metric: str) -> StartSd | None:
    baselines = execution.session.baselines.of(kind_of(conditions))
    return baselines.start_sd(execution.test, metric, server_kind(conditions))


def _judge_pooled(
    judge: ClaimJudge, execution: Execution, side_a: Series, side_b: Series, alpha: float
) -> list[CheckResult]:
    a, b = paired_sides(side_a.finished, side_b.finished)
    return judge_pooled_executions(
        lambda alpha: judge.both(a, b, 1 - alpha), alpha, a.executions, failed_subjects(execution)
    )


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
        kind=_serving_kind(execution, a, b), margins=margins_from(guards),
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


def _serving_kind(execution: Execution, a: RunningServer | EngineSpec, b: RunningServer | EngineSpec) -> str:
    """The hardware kind of a claim's sides; of two that differ a CPU, which is the noisier."""
    kinds = [spec_of(side).serving_kind(execution.kind) for side in (a, b)]
    return execution.kind if execution.kind in kinds else kinds[0]
