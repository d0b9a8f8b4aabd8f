"""The object behind the `perf` fixture."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_llmperf.baseline.paths import kind_of, server_kind
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.tiers import TIERS, check_keep
from pytest_llmperf.errors import SloError, SpecError, UsageError
from pytest_llmperf.judging.baseline_comparison import default_primaries, margins_from
from pytest_llmperf.judging.claim_judge import (
    ClaimJudge,
    claim_judge,
    judge_pooled_executions,
    judge_slos,
    paired_sides,
)
from pytest_llmperf.judging.sample import unverified
from pytest_llmperf.judging.validity import judged_by_requirements
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.engine import EngineSpec, serving_hardware
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import BASELINE_COMPARISON, CheckResult, worst
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.session.arguments import (
    check_comparison,
    check_context,
    check_engine,
    check_measurement,
    check_names,
    check_runs,
    check_sides_differ,
    check_starts,
    check_workload,
    spec_of,
    texts_of,
)
from pytest_llmperf.session.capacity import COOLDOWN_S, METRIC, PRECISION, Capacity, SearchTerms, search_terms
from pytest_llmperf.session.executions import continue_earlier, excluded_execution, failed_subjects, history
from pytest_llmperf.session.sequential_comparison import compare_with_baseline
from pytest_llmperf.session.series import Series
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.stats.prior import Margins
from pytest_llmperf.stats.ratio import StartSd
from pytest_llmperf.workload import Workload
from pytest_llmperf.workload.arguments import boolean

if TYPE_CHECKING:
    from pytest_llmperf.session.perf_session import PerfSession

AnySeries = TypeVar("AnySeries", bound=Series)
DEFAULT_RUNS = 3
# One claim errs in at most 1 % of cases on either side, however often it is looked at (Bonferroni over the looks). Half
# goes to the first look, where most claims are decided and three pairs leave the least to spend.
ALPHA_OF_LOOKS = (0.005, 0.0025, 0.0025)


class Perf:
    """Measure engines, check the results and claim one against another.

    Nothing here raises for a bad result: results are collected, and the worst verdict becomes the test's outcome.
    """

    def __init__(self, session: PerfSession, test: str, kind: str, earlier: tuple[Perf, ...] = ()) -> None:
        self.session = session
        self.test = test
        self.kind = kind
        self.earlier = earlier  # executions of the same test in this session
        self.ended: str | None = None  # a verdict, "USAGE", or "failed" for the test's own exception
        self._results: list[CheckResult] = []
        self.series: list[Series] = []
        self.claims: list[tuple[str, Series, Series]] = []
        self.complete = False  # until the test has reached its end
        self.error: str | None = None  # what ended it before, with the evidence
        self.run_file: Path | None = None  # once something was measured
        self._begun = False

    @property
    def results(self) -> tuple[CheckResult, ...]:
        """What the checks found so far. Results are only ever added, so no test can take a FAIL back."""
        return tuple(self._results)

    def record(self, *results: CheckResult) -> None:
        """Add results of a check of the test's own; they count as those of `check` do.

        Raises:
            UsageError: one of them is no `CheckResult`.
        """
        if strange := [result for result in results if not isinstance(result, CheckResult)]:
            raise UsageError(f"perf.record({strange[0]!r}): give it a pytest_llmperf.results.check.CheckResult.")
        self._results += results

    @property
    def measurements(self) -> list[Measurement]:
        """What was measured so far, unfinished ones included."""
        return [series.measurement for series in self.series if series.measurement is not None]

    @property
    def emulated(self) -> bool:
        """Whether an emulator stands in for the engines (`--emulate`), which has not everything that a server has."""
        return self.session.hardware.emulated

    def __repr__(self) -> str:
        return f"<Perf {self.test} on {self.kind}: {len(self.measurements)} measurements, {len(self.results)} results>"

    def measure(
        self,
        engine: Server | EngineSpec,
        workload: Workload,
        *,
        runs: int = DEFAULT_RUNS,
        starts: int = 1,
        fresh: bool = False,
        may_preempt: bool = False,
        gauges: bool = False,
        keep: Sequence[str] = (),
    ) -> Measurement:
        """Replay a workload, once per seed, on one server start or several.

        Args:
            engine: a running server (the `engine` fixture) or a spec to start.
            workload: what to send; run i adds i to its seed, so that no prompt repeats.
            runs: how many on each start; the run is the unit of replication.
            starts: how many servers to start one after the other, for a spec; a verdict on one holds for it alone.
            fresh: start the server anew, for a spec.
            may_preempt: whether preemptions are part of what is measured; otherwise they make the run an ERROR.
            gauges: sample gauges for kv_usage_peak, running_peak and waiting_peak, and keep them over time in the run
                file. Off by default: rendering the page costs the server some ms, which p99 ITL shows.
            keep: tiers of the cache that are not emptied before each run: "engine" (its own), "l1" (host memory,
                LMCache's or what vLLM offloads there) and "l2" (LMCache's disk). Measured again, a workload finds what
                its first measurement left there. With `fresh`, "l1" restarts the engine beside its LMCache server, and
                "l2" alone restarts both. Like `fresh` and `gauges` it is a condition, `treatment`.

        Raises:
            SpecError: nothing can be measured so, such as tiers that this engine empties only together.
            InfrastructureError: the server or the load generator failed; nothing that was recorded is judged.
        """
        check_engine(engine, "perf.measure(…, workload)")
        check_workload(workload, "perf.measure(engine, …)")
        check_runs(runs, "perf.measure")
        check_starts(starts, engine)
        for name, switch in (("fresh", fresh), ("may_preempt", may_preempt), ("gauges", gauges)):
            boolean("perf.measure", name, switch)
        check_names(keep, "keep")
        if unknown := sorted(set(keep) - set(TIERS)):
            raise SpecError(f"perf.measure(…, keep={unknown}): tiers of the cache are {', '.join(TIERS)}.")
        if fresh and isinstance(engine, Server):
            raise SpecError("perf.measure(engine, …, fresh=True): that server runs already. Hand over its spec, which "
                            "is then started anew: perf.measure(engine.spec, …, fresh=True).")
        if isinstance(spec := getattr(engine, "spec", engine), EngineSpec):
            check_keep(spec, keep, fresh=fresh, starts=starts)
        series = self._series(engine, workload, fresh=fresh, may_preempt=may_preempt, gauges=gauges, keep=tuple(keep))
        measurement = series.extend(runs)
        for _ in range(starts - 1):
            series.start_anew()
            measurement = series.extend(runs)
        return measurement

    def extend(self, measurement: Measurement, runs: int = 1) -> Measurement:
        """Measure on where `measurement` ended, with the seeds that follow: two that are extended in turns drift alike.

        Args:
            measurement: what `measure` or `extend` gave last.
            runs: how many more.

        Raises:
            UsageError: this test has not measured it, or it was extended or compared since.
            SpecError: `runs` cannot be meant, or that server was stopped when this test started another.
            InfrastructureError: the server or the load generator failed.
        """
        check_measurement(measurement, "perf.extend(run)")
        check_runs(runs, "perf.extend")
        return self._series_of(measurement, "perf.extend(run)").extend(runs)

    def max_rate(
        self,
        engine: Server | EngineSpec,
        workload: Workload,
        *,
        slo: str | Sequence[str],
        runs: int = 1,
        precision: float = PRECISION,
        cooldown_s: float = COOLDOWN_S,
    ) -> Measurement:
        """Search the highest request rate within the SLOs: bracket it, then bisect, the SLO rule at each rate.

        The result is a measurement with the one metric `max_rate`: check it ("max_rate >= 12/s", or `baseline=True`).
        A check tries its limit as one more rate if the search has neither proven nor refuted the limit. `max_rate`
        counts requests, also of conversations.

        Args:
            engine: a running server or a spec.
            workload: what to send, with `constant`, `poisson` or `gamma` arrivals; the search begins at its rate, and
                sends the same requests in the same pattern at every other. It is served in time what is over before a
                queue has grown: send so many that the highest rate lasts for twenty answers' times; a note says so.
            slo: limits, e.g. "ttft_p99 <= 500ms"; all of them hold at the rate that is found.
            runs: searches, each with seeds of its own.
            precision: share by which the rates on both sides of the limit differ in the end.
            cooldown_s: rest between two rates.

        Raises:
            SpecError: the workload has no one rate, no SLO is given, or a number cannot be meant.
            SloError: an SLO cannot be read.
            InfrastructureError: no rate is within the SLO, or a run is no evidence.
        """
        check_engine(engine, "perf.max_rate(…, workload)")
        check_workload(workload, "perf.max_rate(engine, …)")
        check_runs(runs, "perf.max_rate")
        return self._capacity(engine, workload, search_terms(slo, precision, cooldown_s)).extend(runs)

    def check(
        self,
        measurement: Measurement,
        *slos: str,
        baseline: bool | str | None = None,
        primaries: Sequence[str] = (),
        margins: Mapping[str, float | tuple[float, float]] | None = None,
    ) -> list[CheckResult]:
        """Judge SLOs such as "ttft_p99 <= 500ms", "error_rate == 0", "goodput(ttft <= 500ms) >= 4/s", and compare
        with the stored baseline.

        Args:
            measurement: what `measure` gave. A comparison that stays open extends it, to 5 and then 8 runs.
            slos: limits.
            baseline: compare; a text names the measurement where a test compares several. False, unlike leaving it
                out, lets `primaries` and `margins` stand for a kind of hardware that is not compared.
            primaries: metrics that the comparison judges; by default median TTFT, mean TPOT and, in a closed loop,
                output throughput.
            margins: how much worse a metric may be, as a share: {"ttft_p50": 0.1}, or (negligible, tolerated).

        Raises:
            UsageError: nothing is asked, or this test has not measured it, or has extended or compared it since.
            SloError: a text cannot be read, there is no such metric, or margins make no sense.
            SpecError: `primaries` or `margins` without a comparison, or more runs are needed of a server that was
                stopped when this test started another.
            InfrastructureError: the baseline cannot be read, or the server or the load generator failed.
        """
        if not slos and not baseline:
            raise UsageError('perf.check(run): name at least one SLO, e.g. perf.check(run, "ttft_p99 <= 500ms"), or '
                             "compare with the baseline: perf.check(run, baseline=True).")
        check_measurement(measurement, "perf.check(run, …)")
        measurement = self._settled(measurement, list(map(parse_slo, slos)))
        check_comparison("perf.check", baseline, primaries, own_margins := margins_from(margins))
        judged_metrics = judged_by_requirements(map(parse_slo, slos))
        against: list[CheckResult] = []
        if baseline:
            series = self._series_of(measurement, "perf.check(run, baseline=True)")
            against = self._compare_with_baseline(
                series, "" if baseline is True else baseline, primaries, own_margins, judged_metrics
            )
            measurement = series.finished
        failed = failed_subjects(self)
        results = judge_slos(measurement, slos, self.session.settings, failed) if slos else []
        results += [one for one in against if one not in results]  # why runs are no evidence is said once
        self._results += results
        return results

    def claim(
        self,
        a: EngineSpec,
        b: EngineSpec,
        workload: Workload,
        text: str,
        *,
        mechanism: str | Sequence[str] = (),
        allow: Mapping[str, float] | None = None,
        runs: int = DEFAULT_RUNS,
        may_preempt: bool = False,
        slo: str | Sequence[str] = (),
        baseline: bool | str | None = None,
        primaries: Sequence[str] = (),
        margins: Mapping[str, float | tuple[float, float]] | None = None,
        start_sd: Mapping[str, float] | None = None,
    ) -> list[CheckResult]:
        """Judge a claim about A against B, e.g. "ttft_p50(b) / ttft_p50(a) >= 3", on the identical seeded workload.

        Sequential: after `runs` seeds on one start of each side, what is still open buys as many again, at most twice;
        the order turns each time (A B, B A, A B), so that a drift cancels and a look costs one start. B sends the seeds
        of a look in reverse order: pairs then show a drift of the machine, for which the interval allows. So few starts
        cannot show how much starts differ: that deviation is the test's own, what at least three stored sessions of the
        same kind of hardware bound, or a stated default. A first side that is
        no evidence, or whose mechanism did not work, ends it before the other starts.

        Args:
            a: the candidate.
            b: the reference.
            text: a ratio of one metric on both sides against a number.
            mechanism: what must be true for the number to have the claimed cause: "prefix_cache_hit_rate(a) >= 0.6".
            allow: the price that the claim accepts: {"ttft_p50": 2.0} lets A be twice as bad there. Median TTFT and
                mean TPOT without a price are guarded: they may not get worse by more than their tolerated margin.
            slo: for a claim about `max_rate`, within which limits: "max_rate(a) / max_rate(b) >= 1.2" says that A
                serves 20 % more users within them. Each run is then a search, see `max_rate`.
            baseline, primaries, margins: compare A with its stored baseline, too, as `check` does. Margins of median
                TTFT and mean TPOT hold for the guards as well.
            start_sd: how much metrics move from one server start to the next, where you know: {"ttft_p50": 0.2} is
                20 % of standard deviation.

        Raises:
            SloError: a text cannot be read, there is no such metric, or a number means nothing.
            SpecError: nothing can be measured so, both sides are one specification, a claim about `max_rate` without
                `slo` or another one with it, or `primaries` or `margins` without a comparison.
            InfrastructureError: a server or the load generator failed, no rate is within the SLO, or the baseline
                cannot be read.
        """
        check_engine(a, "perf.claim(…, b, workload, text)")
        check_engine(b, "perf.claim(a, …, workload, text)")
        check_workload(workload, "perf.claim(a, b, …)")
        check_runs(runs, "perf.claim")
        boolean("perf.claim", "may_preempt", may_preempt)
        own_margins = margins_from(margins)
        judge = claim_judge(text, texts_of(mechanism, "mechanism"), {} if allow is None else allow,
                            self.session.settings, kind=self._serving_kind(a, b), margins=own_margins,
                            start_sd={} if start_sd is None else start_sd,
                            restartable=not any(spec_of(side).url for side in (a, b)))
        guarded = {guard.metric for guard in judge.guards}
        check_comparison("perf.claim", baseline, primaries, own_margins, guarded)
        if bool(slo) != ((claimed := judge.claim.metric) == METRIC):
            why = f"{claimed} takes no SLO" if slo else f'{METRIC} needs an SLO: add slo="ttft_p95 <= 500ms"'
            raise SpecError(f"perf.claim(…, {text!r}, slo={slo!r}): {why}.")
        if slo and (others := sorted(name for name in judge.metrics if not name.startswith(METRIC))):
            raise SpecError(f"perf.claim(…, {text!r}): a search has {METRIC} alone, and no {', '.join(others)}. "
                            "Make that a claim of its own, at one rate.")
        check_sides_differ(a, b)
        for spec in (a, b):
            if isinstance(spec, EngineSpec):
                self.session.pool.check(spec, self.kind)
        side_a, side_b = (
            self._capacity(spec, workload, search_terms(slo), side=side)
            if slo
            else self._series(spec, workload, may_preempt=may_preempt, side=side)
            for side, spec in (("a", a), ("b", b))
        )
        self.claims.append((text, side_a, side_b))
        started_ns = self.session.clock.now_ns()
        result_count = len(self.results)
        # Whichever side already runs goes first: a start is dear.
        order = [side_b, side_a] if self.session.pool.live_spec == b else [side_a, side_b]
        results: list[CheckResult] = []
        against: list[CheckResult] = []
        for place, side in enumerate(order, start=1):
            alone = self._first_look(judge, side, runs, place)
            if side is side_a and baseline and worst(alone) is not Verdict.ERROR:
                # Now, while A's server runs: what it takes to decide this are more runs of A.
                judged_metrics = judged_by_requirements(cause for cause in judge.causes if cause.side == "a")
                against = self._compare_with_baseline(
                    side_a,
                    "" if baseline is True else baseline,
                    primaries,
                    own_margins,
                    judged_metrics,
                    guarded=guarded,
                )
                self._results += against  # they stand, whatever becomes of the other side
            if alone and place == 1:
                results = alone
                break
        results = results or self._looks(judge, order, runs, started_ns)
        self._results[result_count:result_count] = results
        return [*results, *against]

    def compare(self, *texts: str, **sides: Measurement) -> list[CheckResult]:
        """Put measurements of one workload beside each other: the tiers of a cache, two engines.

        Unlike `claim` it starts nothing and measures nothing more; runs of equal seeds make the pairs.

        Args:
            texts: a ratio such as "ttft_p50(disk) / ttft_p50(memory) >= 1.2", judged at 99 %. Without a limit it is
                REPORTED with its interval, and decides nothing.
            sides: by the names that stand there, what `measure` gave, each with two runs or more.

        Raises:
            UsageError: no ratio, fewer than two sides, or one that was not measured.
            SloError: a text cannot be read.
            SpecError: the workloads differ, or there are no two pairs.
        """
        from pytest_llmperf.judging.compared_sides import judge_ratios

        if not texts or len(sides) < 2:
            raise UsageError(
                "perf.compare(…): name at least one ratio and its two sides, e.g. "
                'perf.compare("ttft_p50(cold) / ttft_p50(warm)", cold=cold, warm=warm).'
            )
        for name, side in sides.items():
            check_measurement(side, f"perf.compare(…, {name}=…)", name)
        results = judge_ratios(texts, sides, self.session.settings, failed_subjects(self))
        self._results += results
        return results

    def properties(self) -> list[tuple[str, str]]:
        """What JUnit keeps of this test: per measurement its metrics and conditions, and every verdict."""
        from pytest_llmperf.report.properties import properties

        execution_properties = [("llmperf.executions", history(self))] if self.earlier else []
        return [*properties(self.test, self.measurements, self.results), *execution_properties]

    def close(self) -> None:
        """Write what was measured to the run folder, where the request records live from now on."""
        if self._begun:
            self._write()
        self.session.release_records()

    def _write(self) -> None:
        from pytest_llmperf.results.writer import write_test

        self.run_file = write_test(
            self.session.run_dir,
            self.test,
            self.measurements,
            self.results,
            complete=self.complete,
            error=self.error,
            claims=[_claim(*claim, self.measurements) for claim in self.claims],
            earlier=[excluded_execution(perf, self) for perf in self.earlier],
            worker=self.session.worker,
        )

    def _first_look(self, judge: ClaimJudge, side: Series, runs: int, place: int) -> list[CheckResult]:
        """Measure a side for the first time; what it alone decides against the claim."""
        side.extend(runs, block=place)
        return judge.alone(side.finished.only(lambda run: run.block is not None))

    def _looks(
        self, judge: ClaimJudge, order: Sequence[Series], runs: int, started_ns: int
    ) -> list[CheckResult]:
        """Judge both sides, and measure them again as long as they decide nothing and time allows."""
        side_a, side_b = sorted(order, key=lambda side: side.side)
        judge = judge.learning(partial(self._stored_start_sd, side_a.finished.conditions))
        for look, alpha in enumerate(ALPHA_OF_LOOKS):
            if look:
                order = order[::-1]
                for place, side in enumerate(order, start=1 + 2 * look):
                    side.extend(runs, block=place)
            results = self._judge_pooled(judge, side_a, side_b, alpha)
            elapsed_s = (self.session.clock.now_ns() - started_ns) / 1e9
            if worst(results) is not Verdict.INCONCLUSIVE or elapsed_s >= self.session.settings.extension_limit_s:
                break
            if any(unverified(judge.judged, side.finished.metrics) for side in order):
                break  # no further run confirms a token count
        return results

    def _stored_start_sd(self, conditions: Mapping[str, str], metric: str) -> StartSd | None:
        return self.session.baselines.start_sd(self.test, kind_of(conditions), metric, server_kind(conditions))

    def _serving_kind(self, a: Server | EngineSpec, b: Server | EngineSpec) -> str:
        """The hardware kind of a claim's sides; of two that differ a CPU, which is the noisier."""
        kinds = [serving_hardware(self.kind, spec_of(side).url) for side in (a, b)]
        return self.kind if self.kind in kinds else kinds[0]

    def _judge_pooled(self, judge: ClaimJudge, side_a: Series, side_b: Series, alpha: float) -> list[CheckResult]:
        a, b = paired_sides(side_a.finished, side_b.finished)
        return judge_pooled_executions(
            lambda alpha: judge.both(a, b, 1 - alpha), alpha, a.executions, failed_subjects(self)
        )

    def _compare_with_baseline(
        self,
        series: Series,
        name: str,
        primaries: Sequence[str],
        margins: Mapping[str, Margins],
        named: Collection[str],
        *,
        guarded: Collection[str] = (),
    ) -> list[CheckResult]:
        closed_loop = series.workload.concurrency is not None
        chosen = tuple(find(metric).name for metric in primaries)
        if not chosen:
            stored = self.session.baselines.find(self.test, kind_of(series.finished.conditions), name)
            chosen = default_primaries(series.finished, stored, closed_loop=closed_loop)
        if unjudged := sorted(margins.keys() - {*chosen, *guarded}):
            raise SloError(f"margins={{{unjudged[0]!r}: …}}: the comparison judges {', '.join(chosen) or 'nothing'}. "
                           f"Name it, too: primaries=[…, {unjudged[0]!r}].")
        compared = {metric: margin for metric, margin in margins.items() if metric in chosen}
        series.compared_as(name, chosen, compared)
        failed = any(subject.startswith(BASELINE_COMPARISON) for subject in failed_subjects(self))
        return compare_with_baseline(series, self.session, named, compared, failed_earlier=failed)

    def _series_of(self, measurement: Measurement, call: str) -> Series:
        for series in self.series:
            if series.made(measurement):
                return series
        raise UsageError(
            f"{call}: this run was not measured by this test, or was extended or compared since. Give it what "
            "perf.measure(…) or perf.extend(…) returned last; name several with baseline=\"NAME\"."
        )

    def _settled(self, measurement: Measurement, slos: Sequence[Slo]) -> Measurement:
        """With each rate tried that a check asks for, where the search left it open."""
        capacity = next((one for one in self.series if isinstance(one, Capacity) and one.made(measurement)), None)
        if capacity is None:
            return measurement
        for slo in slos:
            if slo.metric == METRIC and slo.limit > 0:
                capacity.settle(slo.limit)
        return capacity.finished

    def _capacity(
        self, engine: Server | EngineSpec, workload: Workload, terms: SearchTerms, *, side: str = ""
    ) -> Capacity:
        capacity = Capacity(self.session, self.test, self.kind, engine, workload, terms=terms, on_run=self._write,
                            keep=self.series.append, side=side)
        return self._begin(capacity)

    def _series(
        self,
        engine: Server | EngineSpec,
        workload: Workload,
        *,
        fresh: bool = False,
        may_preempt: bool = False,
        gauges: bool = False,
        keep: tuple[str, ...] = (),
        side: str = "",
    ) -> Series:
        series = Series(self.session, self.test, self.kind, engine, workload, on_run=self._write,
                        fresh=fresh, may_preempt=may_preempt, gauges=gauges, keep=keep, side=side)
        return self._begin(series)

    def _begin(self, series: AnySeries) -> AnySeries:
        spec = series.engine if isinstance(series.engine, EngineSpec) else series.engine.spec
        check_context(spec, series.workload, self.session.root)
        self.series.append(series)
        continue_earlier(series, self)
        if not self._begun:
            self._begun = True
            self.session.begin()
            self._write()
        return series


def _claim(text: str, side_a: Series, side_b: Series, measurements: list[Measurement]) -> dict[str, object]:
    """A claim as the run file has it: its sides, and the order of their server starts in each execution."""
    sides = [side.measurement for side in (side_a, side_b)]
    blocks = {(run.execution, run.block, side.side) for side in sides if side for run in side.runs if run.block}
    orders: dict[int, str] = {}
    for execution, _, name in sorted(blocks):
        orders[execution] = orders.get(execution, "") + name.upper()
    index_by_id = {id(one): index for index, one in enumerate(measurements)}
    return {
        "claim": text,
        "a": index_by_id.get(id(sides[0])),
        "b": index_by_id.get(id(sides[1])),
        "order": {str(execution): order for execution, order in orders.items()},
    }
