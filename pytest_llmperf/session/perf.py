"""The object behind the `perf` fixture."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar, overload

from pytest_llmperf.engines.accuracy.lm_eval import check_fits, read_task
from pytest_llmperf.engines.control.running_server import RunningServer, handle_of
from pytest_llmperf.errors import ExitedEarly, SloError, SpecError, UsageError
from pytest_llmperf.judging.accuracy import judge_accuracy, not_emulated
from pytest_llmperf.judging.baseline_comparison import default_primaries, margins_from
from pytest_llmperf.judging.claim_judge import judge_slos
from pytest_llmperf.judging.phases import has_phases, judge_phases
from pytest_llmperf.judging.refusal import judge_refusal
from pytest_llmperf.judging.validity import judged_by_requirements
from pytest_llmperf.metrics.recovery import RECOVERY
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.deployment import Deployment
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.event import Event
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.accuracy import Accuracy
from pytest_llmperf.results.check import BASELINE_COMPARISON, CheckResult
from pytest_llmperf.results.check_json import wording_error
from pytest_llmperf.results.conditions import kind_of
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.profile import Profile
from pytest_llmperf.session.accuracy import AccuracyGuards, answers_of, split_guards
from pytest_llmperf.session.answers import compare_answers
from pytest_llmperf.session.arguments import (
    CACHE_TIERS,
    check_engine,
    check_events,
    check_keep,
    check_measurement,
    check_name,
    check_names,
    check_price,
    check_refusal,
    check_runs,
    check_starts,
    check_streamed,
    check_tables,
    check_together,
    check_try_rates,
    check_until,
    check_workload,
    refuse_arguments,
    spec_of,
)
from pytest_llmperf.session.capacity import COOLDOWN_S, METRIC, PRECISION, Capacity, SearchTerms, search_terms
from pytest_llmperf.session.executions import Execution, failed_subjects
from pytest_llmperf.session.profile import profile_series
from pytest_llmperf.session.sequential_claim import (
    SIZES,
    ClaimResult,
    check_sides,
    judged_claim,
    read_claim,
    specs_beside,
)
from pytest_llmperf.session.sequential_comparison import compare_with_baseline, compare_with_reference
from pytest_llmperf.session.series import Series, Treatment
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.parse import parse_check, parse_ratio
from pytest_llmperf.workload import Workload
from pytest_llmperf.workload.arguments import boolean

DEFAULT_RUNS = 3
Key = TypeVar("Key", bound=Hashable)
AFTER_CHECK = "compare on a line of its own, after perf.check: perf.compare_with_baseline(run, …)"
AFTER_CLAIM = "compare on a line of its own: claim = perf.claim(…), then perf.compare_with_baseline(claim.a, …)"


class Perf:
    """Measure engines, check the results and claim one against another.

    No method raises for a bad result: results are collected, and the worst verdict becomes the test's outcome.
    """

    __slots__ = ("_execution",)

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        return (f"<Perf {self._execution.test} on {self.kind}: {len(self.measurements)} measurements, "
                f"{len(self.results)} results>")

    @property
    def results(self) -> tuple[CheckResult, ...]:
        """Results of the checks so far. Results are only ever added, so no test can take a FAIL back."""
        return self._execution.results

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The test's measurements so far, including a measurement that is still running."""
        return tuple(self._execution.measurements)

    @property
    def kind(self) -> str:
        """Hardware kind that the test runs as: "h200", emulated or not."""
        return self._execution.kind

    @property
    def emulated(self) -> bool:
        """Whether an emulator replaces the engines (`--emulate`). The emulator lacks some features of a real server."""
        return self._execution.session.hardware.emulated

    def record(self, *results: CheckResult) -> None:
        """Add results of a check that the test makes itself. They count like results of `check`.

        Args:
            results: results of `CheckResult.stated`.

        Raises:
            UsageError: an argument is no `CheckResult`, or lacks facts that the sentence of its cause needs.
        """
        for result in results:
            if not isinstance(result, CheckResult):
                raise UsageError(f"perf.record({result!r}): give it a pytest_llmperf.CheckResult.")
            if error := wording_error(result):
                raise UsageError(f"perf.record(CheckResult({result.subject!r}, …)): {error}. Give the reason of "
                                 "a check of your own as text: CheckResult.stated(subject, verdict, reason).")
        self._execution.add_results([*results])

    def measure(
        self,
        engine: RunningServer | EngineSpec,
        workload: Workload,
        *,
        runs: int = DEFAULT_RUNS,
        until: str | Sequence[str] = (),
        starts: int = 1,
        fresh: bool = False,
        may_preempt: bool = False,
        gauges: bool = False,
        keep: Sequence[str] = (),
        events: Sequence[Event] = (),
    ) -> Measurement:
        """Replay a workload, once per seed, on one server start or several.

        Args:
            engine: a running server (the `engine` fixture) or a spec to start.
            workload: the workload to send. Run i adds i to the seed of the workload, so no prompt repeats.
            runs: number of runs on each server start; the run is the unit of replication.
            until: SLOs such as "ttft_p99 <= 500ms". The SLOs are judged after each run. The measurement ends before
                `runs` as soon as all SLOs are decided or a run is invalid. The looks share an error probability of 5 %,
                so the first run decides only metrics far from their limits. Check the same SLOs afterwards.
            starts: number of successive server starts of a spec. A verdict from one start holds only for this start.
            fresh: whether to start a new server for a spec.
            may_preempt: whether preemptions are allowed; otherwise a preemption makes the run an ERROR.
            gauges: whether to sample gauges for kv_usage_peak, running_peak and waiting_peak, and to store them over
                time in the run file. The default is off, because the server needs some ms to render its metrics page,
                which raises p99 ITL.
            keep: KV cache tiers that are not emptied before each run: "engine" (the engine's own), "l1" (host memory of
                LMCache or of vLLM's offloading) and "l2" (LMCache's disk). A repeated measurement then hits the prompts
                of the first measurement. With `fresh`, "l1" restarts the engine and keeps its LMCache server, and "l2"
                alone restarts both. Like `fresh` and `gauges` it is part of the condition `treatment`.
            events: deaths and restarts of replicas during each run: `kill`, `stop` and `restart`. The events divide
                the run into phases, see `check`. No event makes a run invalid. Events are part of the condition
                `treatment`.

        Raises:
            SpecError: an argument makes the measurement impossible, e.g. tiers that this engine empties only together.
            InfrastructureError: the server or the load generator failed; the recorded data are not judged.
        """
        check_engine(engine, "perf.measure(…, workload)")
        check_workload(workload, "perf.measure(engine, …)")
        check_runs(runs, "perf.measure")
        check_starts(starts, engine)
        slos = check_until(until, starts)
        check_price(slos, self._execution.session.settings)
        check_streamed(spec_of(engine), (name for slo in slos for name in slo.named))
        for name, switch in (("fresh", fresh), ("may_preempt", may_preempt), ("gauges", gauges)):
            boolean("perf.measure", name, switch)
        check_names(keep, "keep")
        if unknown := sorted(set(keep) - set(CACHE_TIERS)):
            raise SpecError(f"perf.measure(…, keep={unknown}): tiers of the cache are {', '.join(CACHE_TIERS)}.")
        if fresh and not isinstance(engine, EngineSpec):
            raise SpecError("perf.measure(engine, …, fresh=True): that server runs already. Hand over its spec, which "
                            "is then started anew: perf.measure(engine.spec, …, fresh=True).")
        check_keep(spec_of(engine), keep, fresh=fresh, starts=starts)
        ordered = check_events(events, spec_of(engine), workload, self._execution.session)
        series = self._series(engine, workload, Treatment(fresh, may_preempt, gauges, tuple(keep), ordered),
                              looks=runs if slos else 1)
        if slos:
            return self._until_decided(series, slos, runs)
        measurement = series.extend(runs)
        for _ in range(starts - 1):
            series.start_anew()
            measurement = series.extend(runs)
        return measurement

    def together(self, *specs: EngineSpec) -> tuple[EngineSpec, ...]:
        """Announce the specs that this test will measure. Servers that fit into the memory together start together.

        The test then calls `measure` or `claim` for each spec. Each server gets a KV cache of a stated size, and the
        other servers are idle while one is measured (condition `treatment`). A server of a measurement with
        `may_preempt` or `fresh` runs alone, and so does each server of a test that compares with a stored baseline.

        Args:
            specs: two or more different specs.

        Returns:
            The specs in the order that needs the fewest server starts: first the specs whose servers run now.

        Raises:
            SpecError: there are fewer than two different specs, or a spec cannot be started here.
        """
        execution = self._execution
        pool = execution.session.pool
        check_together(specs)
        for spec in specs:
            pool.check(spec.on(self.kind))
        groups: list[tuple[EngineSpec, ...]] = [(spec,) for spec in specs]
        if any(map(execution.session.reference_of, specs)):
            reason = "each runs beside its reference build"
        elif self.kind == "cpu":
            reason = "on a CPU a start takes all cores"
        else:
            reason = execution.reason_to_run_alone()
        if reason:
            execution.note_alone(len(specs), reason)
        elif len(specs) == 2 and any(map(pool.runs_alone, specs)):  # one start alone is shorter than two together
            reason = "the server of one of the two specs runs already"
        else:
            groups, reason = execution.session.groups([spec.on(self.kind) for spec in specs])
        execution.alone |= {group[0]: reason for group in groups if len(group) == 1}
        execution.beside |= {spec: group for group in groups if len(group) > 1 for spec in group}
        groups.sort(key=lambda group: not any(map(pool.runs, group)))
        return tuple(spec for group in groups for spec in sorted(group, key=lambda spec: not pool.runs(spec)))

    @overload
    def measure_each(
        self, specs: Mapping[str, EngineSpec], workload: Workload, *, runs: int = DEFAULT_RUNS
    ) -> dict[str, Measurement]: ...

    @overload
    def measure_each(
        self, specs: Mapping[str, EngineSpec], workload: Mapping[Key, Workload], *, runs: int = DEFAULT_RUNS
    ) -> dict[Key, dict[str, Measurement]]: ...

    def measure_each(
        self, specs: Mapping[str, EngineSpec], workload: Workload | Mapping[Key, Workload], *, runs: int = DEFAULT_RUNS
    ) -> dict[str, Measurement] | dict[Key, dict[str, Measurement]]:
        """Measure several specs with a workload, or with each of several, in the order of the fewest server starts.

        The specs start as `together` starts them, and each spec is measured with all workloads before the next spec.

        Args:
            specs: the specs by the names that `compare` gives to their sides.
            workload: what to send; or workloads by any names, such as the number of streams.
            runs: as in `measure`, on one server start.

        Returns:
            The measurements by the names of `specs`, ready for `perf.compare(…, **sides)`. For several workloads one
            such table per name of a workload.

        Raises:
            UsageError: `specs` or the workloads are no mapping.
            SpecError: as in `measure` and `together`.
            InfrastructureError: a server or the load generator failed.
        """
        if isinstance(workload, Workload):
            return self.measure_each(specs, {"": workload}, runs=runs)[""]
        check_tables(specs, workload)
        measured = {spec: {key: self.measure(spec, load, runs=runs) for key, load in workload.items()}
                    for spec in self.together(*specs.values())}
        return {key: {name: measured[spec][key] for name, spec in specs.items()} for key in workload}

    def extend(self, measurement: Measurement, runs: int = 1) -> Measurement:
        """Add runs to a measurement, with the seeds that follow. Two measurements that a test extends in turns see the
        same drift of the machine.

        Args:
            measurement: the latest result of `measure` or `extend`.
            runs: number of further runs.

        Raises:
            UsageError: this test did not make the measurement, or has extended or compared it since.
            SpecError: `runs` is invalid, or the server was stopped when this test started another server.
            InfrastructureError: the server or the load generator failed.
        """
        check_measurement(measurement, "perf.extend(run)")
        check_runs(runs, "perf.extend")
        return self._execution.series_of(measurement, "perf.extend(run)").extend(runs)

    def max_rate(
        self,
        engine: RunningServer | EngineSpec,
        workload: Workload,
        *,
        slo: str | Sequence[str],
        try_rates: Sequence[float] = (),
        runs: int = 1,
        precision: float = PRECISION,
        cooldown_s: float = COOLDOWN_S,
        quick: bool = False,
        to_beat: float | None = None,
    ) -> Measurement:
        """Search the highest request rate within the SLOs. The search brackets the rate and then bisects; each tried
        rate is judged by the SLO rules.

        The result is a measurement with the single metric `max_rate`. Check the result with "max_rate >= 12/s", or
        compare the result with the baseline. `max_rate` counts requests, also for conversations.

        Args:
            engine: a running server or a spec.
            workload: the workload to send, with `constant`, `poisson` or `gamma` arrivals. The search starts at the
                rate of the workload and sends the same requests in the same pattern at each other rate. A short load
                ends before a queue grows. Send enough requests that the load at the highest rate lasts 20 times the
                duration of an answer; a note warns of shorter loads.
            slo: limits that the resulting rate must meet, e.g. "ttft_p99 <= 500ms".
            try_rates: rates in requests per second to try after the search, if the search has not decided them. Name
                the limit of a later check, so that a coarse search decides this check. Searches with several seeds are
                judged by an interval and try no further rates.
            runs: number of searches, each with seeds of its own.
            precision: largest relative difference between the highest rate within the SLOs and the lowest rate over
                the SLOs.
            cooldown_s: pause between two rates, in seconds; at most 1 s in a quick search.
            quick: whether a search needs few runs instead of proven rates. A rate is judged after one run, and after
                a second run if the rate is open. Otherwise a rate takes 2, 4 or 6 runs. The second rate is next to the
                first, and not twice the first. The rates of successive searches are displaced by a third of a step. A
                rate with an invalid run is measured again once. Quick searches suit claims, which compare several
                searches per side.
            to_beat: rate of another setting, in requests per second. The search begins there instead of at the rate of
                the workload, and ends as soon as it is proven that the engine does not serve this rate.

        Raises:
            SpecError: the workload has no single rate, no SLO is given, or a number is invalid.
            SloError: an SLO cannot be parsed.
            InfrastructureError: no tried rate meets the SLOs, the engine does not serve the rate to beat, or a run is
                invalid.
        """
        check_engine(engine, "perf.max_rate(…, workload)")
        check_workload(workload, "perf.max_rate(engine, …)")
        check_runs(runs, "perf.max_rate")
        check_try_rates(try_rates)
        terms = search_terms(slo, precision, cooldown_s, quick=quick, to_beat=to_beat)
        check_price(terms.slos, self._execution.session.settings)
        check_streamed(spec_of(engine), terms.named)
        capacity = self._capacity(engine, workload, terms)
        capacity.extend(runs)
        for rate in try_rates:
            capacity.settle(rate)
        return capacity.finished

    def profile(self, measurement: Measurement) -> Profile:
        """Repeat the first run of a measurement on a new server with PyTorch's profiler, and keep the trace.

        The servers that run now are stopped, and the server of the trace ends with the trace. `Profile.ranks` has the
        breakdown of each rank.

        Args:
            measurement: what `measure` or `extend` gave, or a side of a claim.

        Raises:
            UsageError: this test did not make the measurement.
            SpecError: the server is emulated, so it has no kernels.
            EngineError: the engine cannot be traced, does not start, or writes no readable trace.
            LoadError: the load generator failed.
            InfrastructureError: the run folder cannot be written.
        """
        check_measurement(measurement, "perf.profile(run)")
        if self.emulated:
            raise SpecError("perf.profile(run): an emulated server has no kernels to trace. Call it only "
                            "under `if not perf.emulated:`.")
        execution = self._execution
        series = next((series for series in execution.measured_series if series.has_runs_of(measurement)), None)
        series = series or execution.series_of(measurement, "perf.profile(run)")
        number = execution.measured_series.index(series) + 1
        profile = profile_series(series, number, execution.session.worker)
        execution.profiles.append(profile)
        execution.write()
        return profile

    @refuse_arguments("perf.check(run, …)", baseline=AFTER_CHECK, primaries=AFTER_CHECK, margins=AFTER_CHECK)
    def check(self, measurement: Measurement, *slos: str) -> list[CheckResult]:
        """Judge SLOs such as "ttft_p99 <= 500ms", "error_rate == 0", "goodput(ttft <= 500ms) >= 4/s".

        A check judges the runs that it is given, and measures no more.

        Args:
            measurement: what `measure`, `extend` or `max_rate` returned.
            slos: limits. Of a measurement with events also limits of a phase, "error_rate(during) <= 60%", and ratios
                of two phases, "ttft_p50(after) / ttft_p50(before) <= 1.2". The phases are before the first event,
                during the events, and after the last one.

        Raises:
            UsageError: no SLO is named, or `measurement` is no measurement.
            SloError: a text cannot be read, or there is no such metric.
        """
        if not slos:
            raise UsageError('perf.check(run): name at least one SLO, e.g. perf.check(run, "ttft_p99 <= 500ms"). To '
                             "compare with the stored baseline, write perf.compare_with_baseline(run).")
        check_measurement(measurement, "perf.check(run, …)")
        parsed = {text: parse_check(text) for text in slos}
        parsed_slos = [each for each in parsed.values() if isinstance(each, Slo)]
        ratios = [text for text, each in parsed.items() if not isinstance(each, Slo)]
        phased = ratios + [slo.text for slo in parsed_slos if slo.phase or slo.metric == RECOVERY]
        if phased and not has_phases(measurement):
            raise SloError(f"perf.check(run, {phased[0]!r}): this measurement had no events, so it has no phases. Name "
                           "events: perf.measure(fleet, workload, events=[kill(replica=0, at_requests=0.25)]).")
        check_price(parsed_slos, self._execution.session.settings)
        self._check_shares_no_memory(measurement, {name for slo in parsed_slos for name in slo.named})
        judged = judged_by_requirements(parsed_slos)
        for series in self._execution.series:
            if series.measurement is measurement:
                series.judged_metrics |= judged
        settings, failed = self._execution.session.settings, failed_subjects(self._execution)
        return self._execution.add_results(judge_phases(measurement, parsed_slos, ratios, settings, failed))

    def compare_with_baseline(
        self,
        measurement: Measurement | None,
        name: str = "",
        *,
        primaries: Sequence[str] = (),
        margins: Mapping[str, float | tuple[float, float]] | None = None,
    ) -> list[CheckResult]:
        """Compare a measurement with the stored baseline of this test.

        An undecided comparison extends the measurement to 5 and then 8 runs. Call `check` before this method, so that
        the deviation of a metric with an SLO is a FAIL of the SLO and not also an ERROR of the comparison.

        Args:
            measurement: what `measure`, `extend` or `max_rate` returned last, or a side of a claim. None, a side that
                was not measured because the other side alone decided the claim, is not compared.
            name: name of the stored measurement, if a test compares several measurements.
            primaries: metrics that the comparison judges; by default median ITL, mean TPOT and, in a closed loop,
                output throughput. Name TTFT where prefill is the subject of the test.
            margins: how much worse a metric may be, as a share: {"ttft_p50": 0.1}, or (negligible, tolerated).

        Raises:
            UsageError: this test did not make the measurement, or extended or compared it since.
            SloError: a metric does not exist, or margins are invalid.
            SpecError: an argument is invalid, or further runs need a server that this test has already stopped.
            InfrastructureError: the baseline cannot be read, or the server or the load generator failed.
        """
        check_name(name, "perf.compare_with_baseline(run, name)")
        check_names(primaries, "primaries")
        chosen, own_margins = tuple(find(metric).name for metric in primaries), margins_from(margins)
        if measurement is None:
            return []
        check_measurement(measurement, "perf.compare_with_baseline(run)")
        execution = self._execution
        series = execution.series_of(measurement, "perf.compare_with_baseline(run)")
        if not chosen:
            stored = execution.session.baselines.of(kind_of(series.finished.conditions)).find(execution.test, name)
            closed_loop = series.workload.concurrency is not None
            chosen = default_primaries(series.finished, stored, closed_loop=closed_loop)
        if unjudged := sorted(own_margins.keys() - set(chosen)):
            raise SloError(f"margins={{{unjudged[0]!r}: …}}: the comparison judges {', '.join(chosen) or 'nothing'}. "
                           f"Name it, too: primaries=[…, {unjudged[0]!r}].")
        series.compared_as(name, chosen, own_margins)
        failed = any(subject.startswith(BASELINE_COMPARISON) for subject in failed_subjects(execution))
        reference = execution.session.reference_of(spec_of(series.engine))
        if reference is not None and not series.keeps_tiers:
            compared = compare_with_reference(execution, series, reference)
        else:
            compared = compare_with_baseline(series, own_margins, failed_earlier=failed)
        return execution.add_results([result for result in compared if not _is_recorded(result, execution.results)])

    @refuse_arguments("perf.claim(…)", baseline=AFTER_CLAIM, primaries=AFTER_CLAIM,
             margins=f'{AFTER_CLAIM[:-1]}margins=…). The margins of guards are guards={{"ttft_p50": 0.2}}',
             slo="a claim about max_rate has a verb of its own: perf.claim_max_rate(a, b, workload, text, slo=…)")
    def claim(
        self,
        a: RunningServer | EngineSpec,
        b: RunningServer | EngineSpec,
        workload: Workload,
        text: str,
        *,
        mechanism: str | Sequence[str] = (),
        allow: Mapping[str, float] | None = None,
        guards: Mapping[str, float] | None = None,
        start_sd: Mapping[str, float] | None = None,
        runs: int = DEFAULT_RUNS,
        may_preempt: bool = False,
    ) -> ClaimResult:
        """Judge a claim about A and B, e.g. "ttft_p50(b) / ttft_p50(a) >= 3", on the identical seeded workload.

        The test is sequential. The first look uses `runs` seeds on one start of each side. An undecided claim measures
        the same number of runs again, at most twice. The order of the sides alternates (A B, B A, A B), so a drift
        cancels and a look needs only one server start. B sends the seeds of a look in reverse order, so the pairs show
        a drift of the machine, and the interval includes this drift. A few starts cannot show the between-start sd. The
        claim takes this sd from `start_sd`, else from at least three stored sessions on the same hardware kind, else
        from a stated default. If the first side is invalid or its mechanism failed, the second side does not start.

        Args:
            a: the candidate.
            b: the reference.
            workload: the workload for A and B.
            text: a ratio of one metric on the two sides, with a limit.
            mechanism: conditions for the claimed cause, such as "prefix_cache_hit_rate(a) >= 0.6".
            allow: prices that the claim accepts. With {"ttft_p50": 2.0} A may have twice the median TTFT of B; the
                claim fails only for a larger proven loss. Median TTFT and mean TPOT without a price are guard metrics:
                a proven loss beyond their margin fails the claim.
            guards: margins of guard metrics, as a share, instead of the default: {"ttft_p50": 0.2}. With
                {"accuracy(suites/tasks/sums.yaml)": 0.01} A may answer at most one point fewer of the task's questions
                right than B. Both sides are asked the same questions, see `accuracy`.
            start_sd: known between-start sd of metrics, as a share: {"ttft_p50": 0.2} is an sd of 20 %.
            runs, may_preempt: as in `measure`.

        Raises:
            SloError: a text cannot be parsed, a metric does not exist, or a number is invalid.
            SpecError: an argument makes the measurement impossible, both sides have the same specification, or the
                claim is about `max_rate`.
            InfrastructureError: a server or the load generator failed.
        """
        boolean("perf.claim", "may_preempt", may_preempt)
        metric_guards, tolerated_losses = split_guards(guards)
        judge = read_claim(self._execution, "perf.claim", (a, b, workload, text), mechanism=mechanism, allow=allow,
                                  guards=metric_guards, start_sd=start_sd, runs=runs)
        if judge.claim.metric == METRIC:
            raise SpecError(f"perf.claim(…, {text!r}): {METRIC} needs an SLO: perf.claim_max_rate(a, b, workload, "
                            f'{text!r}, slo="ttft_p95 <= 500ms").')
        check_sides(self._execution, a, b, judge.metrics)
        accuracy = AccuracyGuards(self._execution, tolerated_losses)
        accuracy.check([spec_of(a), spec_of(b)])
        beside, alone = specs_beside(self._execution, a, b, judge, may_preempt=may_preempt)
        side_a, side_b = (
            self._series(spec, workload, Treatment(may_preempt=may_preempt), side=side, beside=beside, alone=alone)
            for side, spec in (("a", a), ("b", b))
        )
        return judged_claim(self._execution, judge, text, side_a, side_b, runs=runs, accuracy=accuracy)

    def claim_max_rate(
        self,
        a: RunningServer | EngineSpec,
        b: RunningServer | EngineSpec,
        workload: Workload,
        text: str,
        *,
        slo: str | Sequence[str],
        start_sd: Mapping[str, float] | None = None,
        runs: int = DEFAULT_RUNS,
        precision: float = PRECISION,
        quick: bool = False,
    ) -> ClaimResult:
        """Judge a claim about the highest rates within SLOs: "max_rate(a) / max_rate(b) >= 1.2".

        The example claims that A serves 20 % more requests within the SLOs than B. Each run is a search, see
        `max_rate`. All other rules are as in `claim`.

        Args:
            a, b, workload, text, start_sd: as in `claim`.
            slo, precision, quick: as in `max_rate`.
            runs: number of searches per side and look.

        Raises:
            SloError, SpecError: as in `claim` and `max_rate`, or the claim is not about `max_rate`.
            InfrastructureError: a server or the load generator failed, or no rate is within the SLO.
        """
        judge = read_claim(self._execution, "perf.claim_max_rate", (a, b, workload, text), start_sd=start_sd, runs=runs)
        if judge.claim.metric != METRIC:
            raise SpecError(f"perf.claim_max_rate(…, {text!r}): this claim is about {judge.claim.metric}, and not "
                            f"about {METRIC}. Write perf.claim(a, b, workload, {text!r}).")
        terms = search_terms(slo, precision, quick=quick)
        check_sides(self._execution, a, b, terms.named)
        side_a, side_b = (self._capacity(spec, workload, terms, side=side) for side, spec in (("a", a), ("b", b)))
        return judged_claim(self._execution, judge, text, side_a, side_b, runs=runs,
                            accuracy=AccuracyGuards(self._execution, {}))

    def accuracy(
        self, engine: RunningServer | EngineSpec, task: str, *, at_least: float | None = None
    ) -> Accuracy | None:
        """Ask a server the questions of a task, by lm-evaluation-harness, and judge the share of right answers.

        The harness runs in an environment of its own (`.engines/lm_eval`), and asks over the completions route.

        Args:
            engine: a running server or a spec.
            task: path of a task file of the harness, relative to the project; its data files count from its folder.
            at_least: smallest accepted share of right answers, judged exactly at 95 %. None: the share is REPORTED.

        Returns:
            The answers. None on an emulator: an emulator invents answers, so the result is REPORTED as not measured.

        Raises:
            SpecError: the task file is missing, or the engine cannot answer it.
            SloError: `at_least` is no share.
            InfrastructureError: the harness is not installed or failed, or the server failed.
        """
        check_engine(engine, "perf.accuracy(…, task)")
        if at_least is not None and not (isinstance(at_least, int | float) and 0 < at_least <= 1):
            raise SloError(f"perf.accuracy(…, at_least={at_least!r}): a share of right answers lies between 0 and 1. "
                           "Write 0.8 for 80 %.")
        execution = self._execution
        if self.emulated:
            execution.add_results([not_emulated(task)])
            return None
        read = read_task(task, execution.session.settings, execution.session.root)
        check_fits(read, spec_of(engine))
        handle = handle_of(engine)
        server = execution.session.pool.acquire(handle.on(self.kind)) if isinstance(handle, EngineSpec) else handle
        answers = answers_of(execution, server, read)
        execution.add_results([judge_accuracy(answers, at_least)])
        return answers

    def check_answers(
        self, deployment: EngineSpec, single: EngineSpec | None = None, *, prompts: int = 400, seed: int = 0
    ) -> list[CheckResult]:
        """Compare the greedy answers of a deployment with those of one server, prompt by prompt.

        The single server answers each prompt three times: with empty caches, with the prompt cached, and with emptied
        caches. The floor is the share of prompts with three answers of equal first 16 tokens, because equal servers
        differ in a few answers, too. The deployment answers each prompt twice, with empty caches and with the prompt
        cached. A prompt agrees if both answers equal the first answer of the single server. FAIL if the share of
        prompts that agree is proven to be more than 5 points below the floor. Each prompt ends in a nonce that a
        trained model repeats, so swapped answers also show as lost recall.

        Args:
            deployment: what to check, such as `replicas(…)`.
            single: one server to compare with; None for one replica of the deployment.
            prompts: number of prompts. With 400, equal servers that differ in 3 % of their answers are a PASS in most
                sessions; with 200, in half of them.
            seed: seed of the prompts.

        Raises:
            SpecError: an argument is invalid.
            InfrastructureError: a server does not start or does not answer.
        """
        call = "perf.check_answers(deployment, …)"
        if single is None and isinstance(deployment, Deployment):
            single = deployment.replica
        for spec in (deployment, single):
            if not isinstance(spec, EngineSpec) or spec.is_endpoint:
                raise SpecError(f"{call}: {spec!r} is no server that this test starts. Write check_answers(fleet), or "
                                "check_answers(spec, vllm(MODEL)).")
        if type(prompts) is not int or not 20 <= prompts <= 5000:
            raise SpecError(f"{call}: prompts={prompts!r} must be a whole number from 20 to 5000.")
        assert single is not None, "checked above"
        answers = compare_answers(self._execution, deployment.on(self.kind), single.on(self.kind), prompts, seed)
        return self._execution.add_results(answers)

    def refuses(self, spec: EngineSpec, reason: str) -> CheckResult:
        """Start an engine that must refuse to start, and judge why it refused.

        PASS only if the engine itself was started, ended before it was ready, and named the reason in an error message
        of its log. A server that becomes ready is a FAIL. An engine that ends for another reason is an ERROR, which
        quotes the last error messages. A prediction from the sizes of weights, KV cache and memory is shown with the
        result. It decides nothing.

        Args:
            spec: what to start, on a server of its own.
            reason: a flag, in the engine's spelling or with underscores, or a phrase of the engine's error message;
                at least 4 characters.

        Raises:
            SpecError: the spec is no engine that can be started here, or the reason is no text.
            InfrastructureError: the engine is not installed, does not answer in time, or the hardware is in use.
        """
        check_refusal(spec, reason)
        execution = self._execution
        pool = execution.session.pool
        prediction, evidence = execution.session.gpus.predicted_refusal(spec.on(self.kind)), None
        try:
            pool.acquire(spec.on(self.kind), fresh=True)
        except ExitedEarly as error:
            evidence = error.evidence
            if evidence is None:
                raise
        return execution.add_results([judge_refusal(reason, evidence, prediction)])[0]

    def compare(self, *texts: str, **sides: Measurement) -> list[CheckResult]:
        """Compare measurements of one workload, for instance on several cache tiers or on two engines.

        Unlike `claim`, `compare` starts no server and measures no further runs. Runs with equal seeds form the pairs.

        Args:
            texts: ratios such as "ttft_p50(disk) / ttft_p50(memory) >= 1.2", judged at 99 %. A ratio without a limit is
                REPORTED with its interval and not judged.
            sides: measurements by their names in the texts, each a result of `measure` with two runs or more.

        Raises:
            UsageError: there is no ratio, there are fewer than two sides, or a side is not a measurement.
            SloError: a text cannot be parsed.
            SpecError: the workloads differ, or there are fewer than two pairs.
        """
        from pytest_llmperf.judging.compared_sides import judge_ratios

        if not texts or len(sides) < 2:
            raise UsageError(
                "perf.compare(…): name at least one ratio and its two sides, e.g. "
                'perf.compare("ttft_p50(cold) / ttft_p50(warm)", cold=cold, warm=warm).'
            )
        for name, side in sides.items():
            check_measurement(side, f"perf.compare(…, {name}=…)", name)
            self._check_shares_no_memory(side, {parse_ratio(text, tuple(sides))[0].metric for text in texts})
        settings, failed = self._execution.session.settings, failed_subjects(self._execution)
        return self._execution.add_results(judge_ratios(texts, sides, settings, failed))

    def check_smaller(self, subject: str, smaller: CheckResult, larger: CheckResult) -> CheckResult:
        """Judge at 99 % whether one ratio of `compare` is below another; the noise of both counts.

        Args:
            subject: what is judged, in words: "gain of 64 streams < gain of one stream".
            smaller, larger: results of `compare`. A result without an interval, as of an invalid run, is INCONCLUSIVE.

        Raises:
            UsageError: an argument is no result of `compare`.
        """
        from pytest_llmperf.judging.compared_sides import ratio_is_smaller

        for name, ratio in (("smaller", smaller), ("larger", larger)):
            if not isinstance(ratio, CheckResult):
                raise UsageError(f"perf.check_smaller(…, {name}={ratio!r}): give it a result of perf.compare, such as "
                                 '(ratio,) = perf.compare("ttft_p50(cold) / ttft_p50(warm)", cold=cold, warm=warm).')
        return self._execution.add_results([ratio_is_smaller(subject, smaller, larger)])[0]

    def _until_decided(self, series: Series, slos: Sequence[Slo], runs: int) -> Measurement:
        """Measure run by run until each SLO is decided, at most `runs`."""
        settings, failed = self._execution.session.settings, failed_subjects(self._execution)
        for _ in range(runs):
            measurement = series.extend(1)
            results = judge_slos(measurement, slos, settings, failed)
            if not any(result.verdict is Verdict.INCONCLUSIVE for result in results):
                break
        return measurement

    def _check_shares_no_memory(self, measurement: Measurement, metrics: Collection[str]) -> None:
        """Refuse metrics of memory and start-up of a server that started beside others.

        Raises:
            SpecError: the measurement is of a spec that this test announced by `together`.
        """
        shared = any(series.measurement is measurement and series.beside and spec_of(series.engine) in
                     self._execution.beside for series in self._execution.series)
        if shared and (about := sorted(SIZES.intersection(metrics))):
            raise SpecError(f"{measurement.engine}: {about[0]} is of a server that shares the GPU with the servers of "
                            "perf.together(…). Remove the spec from that call: then the server starts alone.")

    def _capacity(
        self, engine: RunningServer | EngineSpec, workload: Workload, terms: SearchTerms, *, side: str = ""
    ) -> Capacity:
        return self._execution.begin(Capacity(self._execution, handle_of(engine), workload, terms, side=side))

    def _series(
        self, engine: RunningServer | EngineSpec, workload: Workload, treatment: Treatment, *,
        side: str = "", looks: int = 1, beside: tuple[EngineSpec, ...] | None = None, alone: str = "",
    ) -> Series:
        execution, spec = self._execution, spec_of(engine)
        if beside is None:
            announced = () if treatment.may_preempt or treatment.fresh else execution.beside.get(spec, ())
            beside = execution.session.beside(spec.on(self.kind), compares=execution.compares) or announced
            alone = execution.alone.get(spec, "")
        return execution.begin(Series(execution, handle_of(engine), workload, treatment, side=side, looks=looks,
                                      beside=beside, alone=alone))


def _is_recorded(result: CheckResult, recorded: Sequence[CheckResult]) -> bool:
    """Whether another check has found the same runs to be invalid, for the same causes."""
    return bool(result.problems) and any(
        {problem.fault.name for problem in other.problems} >= {problem.fault.name for problem in result.problems}
        for other in recorded
    )
