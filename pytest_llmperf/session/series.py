"""A measurement in the making: runs of one workload on one engine, seed after seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pytest_llmperf.clock import at_once, require_real_clock
from pytest_llmperf.engines.control.json_answers import whole_number
from pytest_llmperf.engines.models.roofline import latency_bound
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import SpecError
from pytest_llmperf.load.transport import Progress
from pytest_llmperf.metrics import measure as metrics_of
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.event import Event
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.model.status import WarmingUp
from pytest_llmperf.results.conditions import kind_of
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.session.conditions import BESIDE, conditions
from pytest_llmperf.session.gpu_layout import Pair, turns_of
from pytest_llmperf.session.perf_session import MeasuringTest
from pytest_llmperf.session.progress import RunProgress
from pytest_llmperf.session.replay import GAUGE_INTERVAL_S, Watch
from pytest_llmperf.session.warm_up import warm_up
from pytest_llmperf.stats.priors import Margins
from pytest_llmperf.workload import Workload


def run_in_turn(
    order: Sequence[Series], runs: int, first_block: int, *, together: bool, steady: bool = False
) -> int:
    """Measure `runs` runs of each series, and return the number of the next block.

    Servers that live together take turns run by run, and the order turns each time (A B, B A, A B), so that a drift of
    the machine cancels. Servers that run one after the other make all their runs at a time, because a turn costs a
    start.

    Args:
        order: the series in the order of their first runs.
        runs: number of runs per series.
        first_block: number of the first block, see `Run`.
        together: whether the servers live together.
        steady: as in `Series.server`.
    """
    block = first_block
    for turn in range(runs if together else 1):
        for series in order if turn % 2 == 0 else order[::-1]:
            series.extend(1 if together else runs, block=block, steady=steady)
            block += 1
    return block


def run_at_once(jobs: Sequence[tuple[Series, Server, int]], block: int, *, complete: bool) -> None:
    """Make one run of each job at the same time.

    Args:
        jobs: series, server and seed of each run. No two jobs have the same server.
        block, complete: as in `Series.one_run` and `Series.keep`.
    """
    runs = at_once(jobs[0][0].session.clock, [
        partial(series.one_run, server, seed, series.watch(1, 1) if number == 0 else None, block)
        for number, (series, server, seed) in enumerate(jobs)])
    for (series, server, _), run in zip(jobs, runs, strict=True):
        series.keep(series.continued(server), run, complete=complete)


def run_round(
    candidate: Series, reference: Series, placements: Sequence[Sequence[Pair]], first_block: int, set_of: dict[int, int]
) -> int:
    """Make the pairs of a round, and return the number of the next block.

    Args:
        candidate, reference: the series of both builds.
        placements: as of `GpuLayout.placements`, in the order of this round.
        first_block: number of the first block, see `Run`.
        set_of: gets the GPU set of each server start. If it is empty, the servers of the first placement may run
            already.

    Raises:
        InfrastructureError: a server or the load generator failed.
    """
    pool, block = candidate.session.pool, first_block
    for pairs in placements:
        if set_of:
            pool.release()
        specs = [spec for pair in pairs for spec in pair]
        servers = {spec: pool.acquire(spec, beside=[other for other in specs if other != spec]) for spec in specs}
        for spec, server in servers.items():
            (reference if spec.installation else candidate).warm_up(server)
            set_of[server.start_id] = spec.gpu_set
        pool.wait_steady(list(servers.values()))
        first_seed, turns = candidate.next_seed, list(turns_of(pairs))
        for turn in turns:
            jobs = [((candidate, reference)[side], servers[pairs[lane][side]], first_seed + number * len(pairs) + lane)
                    for lane, side, number in turn]
            run_at_once(jobs, block, complete=turn is turns[-1])
            block += 1
    return block


@dataclass(frozen=True, slots=True)
class Treatment:
    """Treatment of server and caches: arguments of `perf.measure`."""

    fresh: bool = False
    may_preempt: bool = False
    gauges: bool = False
    keep: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


class Series:
    """Runs of one workload on one engine. It can be extended later, on the same server start or on another.

    Args:
        execution: of the test, which stores each run, so an interruption loses only the unfinished run.
        engine: a running server, or a spec to start.
        workload: the workload. Run i adds i to the seed of the workload, so no prompt repeats.
        treatment: of the server and its caches.
        side: "a" or "b" of a claim.
        looks: largest number of looks at the SLOs.
        label: name of the series in the progress display; "" shows the side.
        beside: specs that are measured in turn with this one; if the memory suffices, all these servers run at the same
            time.
        alone: why the test lets the server run alone, see `Measurement`.
    """

    def __init__(
        self, execution: MeasuringTest, engine: Server | EngineSpec, workload: Workload,
        treatment: Treatment | None = None, *,
        side: str = "", looks: int = 1, label: str = "", beside: tuple[EngineSpec, ...] = (), alone: str = "",
    ) -> None:
        self.execution, self.session = execution, execution.session
        self.engine = engine.on(execution.kind) if isinstance(engine, EngineSpec) else engine
        self.kind = (self.engine if isinstance(self.engine, EngineSpec) else self.engine.spec).kind or execution.kind
        self.workload, self.treatment = workload, treatment or Treatment()
        self.measurement: Measurement | None = None
        self.side, self._looks, self.label = side, looks, label or side.upper()
        self.beside, self.alone = beside, alone
        self.key: tuple[object, ...] = (
            str(getattr(engine, "spec", engine)), str(workload), self.treatment, self.label, looks)
        self.judged_metrics: set[str] = set()  # by checks or mechanisms; their deviations do not make a run invalid
        self.number = 1  # of the execution
        self._first_seed = 0
        self._earlier_looks = 0
        self._earlier: Sequence[Series] = ()

    def twin(self, engine: EngineSpec, label: str, beside: tuple[EngineSpec, ...]) -> Series:
        """A series of the same workload and treatment on another specification, without runs.

        Args:
            engine: the specification to measure.
            label, beside: as in `Series`.
        """
        return Series(self.execution, engine, self.workload, self.treatment, label=label, beside=beside)

    def follow(self, earlier: Sequence[Series], *, number: int, first_seed: int, earlier_looks: int = 0) -> None:
        """Continue the same series of earlier executions in a re-run. Earlier runs count if their conditions are equal.

        Args:
            earlier: the same series in earlier executions.
            number: of this execution, from 1.
            first_seed: first seed of this execution's runs, which gives new prompts.
            earlier_looks: as in `Measurement`.
        """
        self._earlier, self.number, self._first_seed = earlier, number, first_seed
        self._earlier_looks = earlier_looks

    @property
    def finished(self) -> Measurement:
        """The measurement, once there is one.

        Raises:
            SpecError: nothing was measured yet.
        """
        if self.measurement is None:
            raise SpecError(f"{self.execution.test}: nothing was measured yet. Measure before the check: "
                            "perf.measure(engine, workload).")
        return self.measurement

    def has_runs_of(self, measurement: Measurement) -> bool:
        """Whether the runs of an earlier state of this measurement are among its runs."""
        own = () if self.measurement is None else self.measurement.runs
        return bool(measurement.runs) and any(run is measurement.runs[0] for run in own)

    @property
    def current(self) -> Measurement | None:
        """The measurement without runs of earlier executions."""
        return None if self.measurement is None else self.measurement.only(lambda run: run.execution == self.number)

    @property
    def keeps_tiers(self) -> bool:
        """Whether runs can hit KV cache that an earlier measurement left in a tier."""
        return bool(self.treatment.keep)

    @property
    def stored_block(self) -> int | None:
        """First block of this side in an interrupted command that goes on; None if the claim begins now."""
        return None

    @property
    def several_at_once(self) -> bool:
        """Whether runs of this series can be made on several servers at the same time."""
        return True

    @property
    def next_seed(self) -> int:
        """The seed after the seeds of this execution."""
        return self._first_seed + (0 if self.current is None else len(self.current.runs))

    @property
    def repeatable(self) -> bool:
        """Whether a seed can be sent again: every tier of the cache was emptied before each of its runs."""
        return not self.treatment.keep and all(run.cache_reset for run in self.finished.runs)

    def compared_as(self, baseline: str, primaries: tuple[str, ...], margins: Mapping[str, Margins]) -> None:
        """Note under which name, by which metrics and margins it is compared with a baseline."""
        self.measurement = replace(self.finished, baseline=baseline, primaries=primaries, margins=margins)
        self.execution.write()

    def keep_side(self, stored: Measurement | None) -> None:
        """Go on from the stored runs of this side, which an interrupted command measured."""
        if stored is None:
            return
        self.measurement = replace(
            self._with_own_runs(stored), may_preempt=self.treatment.may_preempt, looks=self._looks,
            stored_run_sd=self.session.baselines.of(kind_of(stored.conditions)).run_sd(self.execution.test),
        )

    def _with_own_runs(self, stored: Measurement, tokenizer: str = "") -> Measurement:
        """A stored measurement with its runs as runs of this execution, and metrics from the stored requests.

        Args:
            tokenizer: as in `Run`.
        """
        runs = tuple(replace(run, execution=self.number) for run in stored.runs)
        return replace(stored, runs=runs,
                       metrics=tuple(metrics_of(run.records, run.counters, tokenizer) for run in runs))

    def start_anew(self) -> None:
        """Continue on a new server start, after runs on another start.

        Raises:
            InfrastructureError: the server does not start.
        """
        self.measurement = replace(self.finished, complete=False)
        self.execution.write()
        self.server(anew=True)

    def extend(
        self, runs: int, *, seeds: int | None = None, block: int | None = None, steady: bool = False
    ) -> Measurement:
        """Measure `runs` further runs, with the next seeds.

        Args:
            runs: number of further runs.
            seeds: number of different seeds, after which the seeds repeat. None gives each run a new seed; but if an
                earlier execution compared this series with a baseline, the seeds of that execution repeat.
            block: block of a claim, see `Run`.
            steady: as in `server`.

        Raises:
            InfrastructureError: the server or the load generator failed.
        """
        server = self.server(steady=steady)
        if server.spec.is_endpoint:
            self.session.ledger.check(server.spec, self.workload.requests(self._first_seed), runs)
        self.warm_up(server)
        measurement = self.continued(server)
        for number, seed in enumerate(self._next_seeds(measurement, runs, seeds, block)):
            run = self.one_run(server, seed, self.watch(number + 1, runs), block)
            measurement = self.keep(measurement, run, complete=number + 1 == runs)
        return measurement

    def warm_up(self, server: Server) -> None:
        """Send the requests of the warm-up, unless the server has had them."""
        server.mend()
        if str(self.workload) not in server.warmed_for:
            self.session.notify(WarmingUp(str(server.spec)))
            warm_up(server, self.workload, self.session.replayer)
            server.warmed_for.add(str(self.workload))

    def continued(self, server: Server) -> Measurement:
        """The measurement before further runs on this server."""
        self.measurement = replace(self.measurement or self._continued_measurement(server), complete=False)
        return self.measurement

    def one_run(self, server: Server, seed: int, watch: Watch | None, block: int | None) -> Run:
        """One run on this server, not yet kept.

        Args:
            watch: as in `Replayer.run`.
            block: as in `extend`.
        """
        run = self.session.replayer.run(
            server, self.workload, seed, watch, keep=self.treatment.keep,
            gauge_interval_s=GAUGE_INTERVAL_S if self.treatment.gauges else None, events=self.treatment.events)
        most = self._expected_hit_rate(server, seed)
        return replace(run, execution=self.number, block=block, expected_hit_rate=most)

    def _next_seeds(self, measured: Measurement, runs: int, seeds: int | None, block: int | None) -> list[int]:
        """Seeds of the next `runs` runs; arguments as in `extend`.

        Side B of a claim sends the seeds of a block in reverse order. So the number of runs between the two runs of a
        pair varies, and the pairs show a drift of the machine (`stats.ratio`).
        """
        repeated = seeds if block is not None else seeds or self._seeds_to_repeat()
        if repeated is not None:
            return [(len(measured.runs) + number) % repeated for number in range(runs)]
        runs_of_execution = [run for run in measured.runs if run.execution == self.number]
        # Both sides of a claim send the same seeds, whatever one of them was measured for beside it.
        first = self._first_seed + sum(block is None or run.block is not None for run in runs_of_execution)
        following = list(range(first, first + runs))
        return following[::-1] if block is not None and self.side == "b" else following

    def _seeds_to_repeat(self) -> int | None:
        """Stored runs are paired by seed, so a re-run that is compared brings no new ones where it can do without."""
        repeatable_series = [series for series in self._earlier if series.repeatable]
        compared = [series.finished for series in repeatable_series if series.finished.baseline is not None]
        return max((len({run.seed for run in comparison.runs}) for comparison in compared), default=None)

    def _continued_measurement(self, server: Server) -> Measurement:
        """A new measurement with the runs of earlier executions under the same conditions."""
        begun = self.begun(server)
        for series in self._earlier:
            if series.current is not None and series.current.conditions == begun.conditions:
                begun = replace(
                    begun, runs=begun.runs + series.current.runs, metrics=begun.metrics + series.current.metrics
                )
        return begun

    def server(self, *, anew: bool = False, steady: bool = False) -> Server:
        """The server of the next runs, started if it does not run.

        Args:
            anew: whether to start a new server.
            steady: whether to wait for the age from which the server's speed is steady (`EnginePool.wait_steady`).

        Raises:
            InfrastructureError: the server does not start.
            UsageError: a library replaces the clock.
        """
        require_real_clock()
        if isinstance(self.engine, EngineSpec):
            fresh = anew or (self.treatment.fresh and self.measurement is None)
            keep_lmcache = "l1" in self.treatment.keep
            server = self.session.pool.acquire(self.engine, fresh=fresh, keep_lmcache=keep_lmcache, beside=self.beside)
            if steady:
                self.session.pool.wait_steady([server])
            return server
        if self.engine.spec.is_endpoint and self.engine.unit.stopped:  # others had a turn at it meanwhile
            return self.session.pool.acquire(self.engine.spec)
        self.engine.unit.check_alive()
        self.session.pool.wake(self.engine)
        return self.engine

    def watch(self, run: int, runs: int) -> Watch:
        """What shows the progress of run number `run` of `runs`."""
        return self._shown(RunProgress(run, runs, self.label))

    def _shown(self, shown: RunProgress) -> Watch:
        def notify(progress: Progress, plan: LoadPlan) -> None:
            self.session.notify(shown.status(progress, plan))

        return notify

    def begun(self, server: Server) -> Measurement:
        """The measurement before its first run."""
        facts = server.facts
        attached = server.spec.lmcache
        values_by_name = conditions(
            server, facts, self.workload, self.session.gpus.hardware_of(server.spec), self.kind,
            connections=self.session.settings.connections, planted=self.session.planted_in(server.spec),
            handling=self._handling(server), price=self.session.settings.gpu_price,
        )
        return Measurement(
            engine=str(server.spec),
            workload=str(self.workload),
            conditions=values_by_name,
            runs=(),
            metrics=(),
            lmcache_reuse=None if attached is None else self.workload.expected_hit_rate(attached.chunk_size),
            may_preempt=self.treatment.may_preempt,
            complete=False,
            side=self.side,
            looks=self._looks,
            earlier_looks=self._earlier_looks,
            bound=latency_bound(server.spec, server.model, facts),
            alone="" if server.siblings else self.alone,
            stored_run_sd=self.session.baselines.of(kind_of(values_by_name)).run_sd(self.execution.test),
        )

    def _handling(self, server: Server) -> str:
        """How server and caches are treated otherwise than by default: a server alone, emptied before each run."""
        fresh = self.treatment.fresh if isinstance(self.engine, EngineSpec) else self.engine.fresh
        handling = ["fresh start"] if fresh else []
        if self.treatment.keep:
            handling.append(f"keeps {', '.join(sorted(set(self.treatment.keep)))}")
        if self.treatment.gauges:
            handling.append(f"gauges every {GAUGE_INTERVAL_S:g} s")
        handling += map(str, self.treatment.events)
        if server.siblings:
            state = "sleeping" if server.takes_turns else "idle"
            handling.append(f"{server.siblings} {state} server{'s' if server.siblings > 1 else ''} {BESIDE}")
        if server.elsewhere:
            handling.append(f"{server.elsewhere} server{'s' if server.elsewhere > 1 else ''} on other GPUs")
        return "; ".join(handling)

    def _expected_hit_rate(self, server: Server, seed: int) -> float | None:
        """Upper bound of the hit rate; None if a kept tier may hold prompts of an earlier run, or if it is unknown.

        For an unknown block size, blocks of one token give an upper bound for token prompts. Text prompts have no bound
        in this case, because the server may prepend tokens that all prompts share. For a known block size, a block of
        text counts words. A word has at least one token, so the result is still an upper bound.
        """
        if self.treatment.keep:
            return None
        tokens_per_block = whole_number(server.facts.get("block_size", ""))
        if server.api.sends_text or self.workload.has_text(seed):
            return self.workload.expected_hit_rate(1, seed) if tokens_per_block else None
        return self.workload.expected_hit_rate(tokens_per_block or 1, seed)

    def keep(self, measured: Measurement, run: Run, *, complete: bool) -> Measurement:
        """Add a run to the earlier runs of this series, and store the measurement.

        Args:
            complete: whether it is the last of the runs that were asked for.
        """
        metrics = metrics_of(run.records, run.counters, run.tokenizer)
        after = replace(measured, runs=(*measured.runs, run), metrics=(*measured.metrics, metrics), complete=complete)
        self.measurement = after
        self.execution.write()
        return after
