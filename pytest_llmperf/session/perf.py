"""The object behind the `perf` fixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import described
from pytest_llmperf.errors import SpecError, UsageError
from pytest_llmperf.load.transport import Progress
from pytest_llmperf.metrics import measure as metrics_of
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.verdict import CheckResult
from pytest_llmperf.session.conditions import conditions
from pytest_llmperf.session.judge import judge_claim, judge_slos
from pytest_llmperf.session.measurement import Measurement, Run
from pytest_llmperf.session.replay import Replayer, stream_limits
from pytest_llmperf.session.warm_up import warm_up
from pytest_llmperf.workload import Workload

if TYPE_CHECKING:
    from pytest_llmperf.session.perf_session import PerfSession

DEFAULT_RUNS = 3
TELL_EVERY_NS = 10_000_000_000


class Perf:
    """Measure engines, check the results and claim one against another.

    Nothing here raises for a bad result: results are collected, and the worst verdict becomes the test's outcome.
    """

    def __init__(self, session: PerfSession, test: str, kind: str) -> None:
        self.session = session
        self.test = test
        self.kind = kind
        self.results: list[CheckResult] = []
        self.measurements: list[Measurement] = []
        self.complete = False  # until the test has reached its end
        self.error: str | None = None  # what ended it before, with the evidence
        self._begun = False

    def __repr__(self) -> str:
        return f"<Perf {self.test} on {self.kind}: {len(self.measurements)} measurements, {len(self.results)} results>"

    def measure(
        self,
        engine: Server | EngineSpec,
        workload: Workload,
        *,
        runs: int = DEFAULT_RUNS,
        fresh: bool = False,
        may_preempt: bool = False,
        gauges: bool = False,
    ) -> Measurement:
        """Replay a workload, once per seed, on one server start.

        Args:
            engine: a running server (the `engine` fixture) or a spec to start.
            workload: what to send; run i adds i to its seed, so that no prompt repeats.
            runs: how many; the run is the unit of replication.
            fresh: start the server anew, for a spec.
            may_preempt: whether preemptions are part of what is measured; otherwise they make the run an ERROR.
            gauges: sample gauges for kv_usage_peak, running_peak and waiting_peak. Off by default: rendering the
                page costs the server some ms, which p99 ITL shows.

        Raises:
            InfrastructureError: the server or the load generator failed; nothing that was recorded is judged.
        """
        if not isinstance(workload, Workload):
            raise SpecError(f"perf.measure(engine, {workload!r}): a workload is made by random_tokens(…), "
                            "shared_prefix(…), mixed(…), multi_turn(…) or sharegpt(…).")
        if runs < 1:
            raise SpecError(f"perf.measure(…, runs={runs}): at least one run.")
        self._begun = True
        self._write()
        server = self._server(engine, fresh=fresh)
        if str(workload) not in server.warmed_for:
            self.session.tell(f"{self.test}: warming up {described(server.spec)}")
            warm_up(server, workload, self._replayer("warm-up"))
            server.warmed_for.add(str(workload))
        kept = self._nothing_yet(server, workload, may_preempt)
        for seed in range(runs):
            run = self._replayer(f"run {seed + 1} of {runs}", gauges=gauges).run(server, workload, seed)
            kept = self._keep(kept, run, complete=seed + 1 == runs)
        return kept

    def check(self, measurement: Measurement, *slos: str) -> list[CheckResult]:
        """Judge SLOs such as "ttft_p99 <= 500ms", "error_rate == 0", "goodput(ttft <= 500ms) >= 4/s".

        Raises:
            SloError: a text cannot be read.
        """
        if not slos:
            raise UsageError('perf.check(run): name at least one SLO, e.g. perf.check(run, "ttft_p99 <= 500ms").')
        results = judge_slos(measurement, slos, self.session.settings)
        self.results += results
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
    ) -> list[CheckResult]:
        """Judge a claim about A against B, e.g. "ttft_p50(b) / ttft_p50(a) >= 3", on the identical seeded workload.

        A screen: one start of each side, `runs` seeds, the start-to-start deviation from a stated prior.

        Args:
            a: the candidate.
            b: the reference.
            text: a ratio of one metric on both sides against a number.
            mechanism: what must be true for the number to have the claimed cause: "prefix_cache_hit_rate(a) >= 0.6".
            allow: the price that the claim accepts: {"ttft_p50": 2.0} lets A be twice as bad there; other primary
                metrics may not get worse.

        Raises:
            SloError: a text cannot be read.
        """
        mechanisms = (mechanism,) if isinstance(mechanism, str) else tuple(mechanism)
        judge = judge_claim(text, mechanisms, allow or {}, self.session.settings)
        # Whichever side already runs goes first: a start is dear.
        b_first = self.session.pool.live_spec == b
        order = (b, a) if b_first else (a, b)
        first, second = (self.measure(spec, workload, runs=runs, may_preempt=may_preempt) for spec in order)
        results = judge(second, first) if b_first else judge(first, second)
        self.results += results
        return results

    def properties(self) -> list[tuple[str, str]]:
        """What JUnit keeps of this test: per measurement its metrics, digest of conditions, and every verdict."""
        from pytest_llmperf.report.properties import properties

        return properties(self.measurements, self.results)

    def close(self) -> None:
        """Write what was measured to the run folder."""
        if self._begun:
            self._write()

    def _write(self) -> None:
        from pytest_llmperf.report.run_folder import write_test

        write_test(
            self.session.run_dir,
            self.test,
            self.measurements,
            self.results,
            complete=self.complete,
            error=self.error,
        )

    def _server(self, engine: Server | EngineSpec, *, fresh: bool) -> Server:
        if isinstance(engine, EngineSpec):
            return self.session.pool.acquire(engine, self.kind, fresh=fresh)
        if not isinstance(engine, Server):
            raise SpecError(
                f"perf.measure({engine!r}, …): an engine is the `engine` fixture or a spec such as vllm(MODEL)."
            )
        engine.check_alive()
        return engine

    def _replayer(self, what: str, *, gauges: bool = False) -> Replayer:
        last_ns = 0

        def tell(progress: Progress) -> None:
            nonlocal last_ns
            if progress.elapsed_ns - last_ns >= TELL_EVERY_NS:
                last_ns = progress.elapsed_ns
                self.session.tell(f"{self.test}: {what}, {progress.done} of {progress.sent} answered, "
                                  f"{progress.failed} failed, {progress.elapsed_ns / 1e9:.0f} s")

        settings = self.session.settings
        return Replayer(
            self.session.transport,
            self.session.now,
            settings.gauge_interval_s if gauges else None,
            tell,
            clock=self.session.clock,
            limits=stream_limits(settings),
            timeout_s=settings.measure_timeout_s,
        )

    def _nothing_yet(self, server: Server, workload: Workload, may_preempt: bool) -> Measurement:
        facts = server.facts
        block = facts.get("block_size", "")
        measurement = Measurement(
            engine=described(server.spec),
            workload=str(workload),
            conditions=conditions(server, facts, workload, self.session.hardware, self.kind),
            runs=(),
            metrics=(),
            expected_hit_rate=workload.expected_hit_rate(int(block)) if block.isdigit() else None,
            may_preempt=may_preempt,
            complete=False,
        )
        self.measurements.append(measurement)
        return measurement

    def _keep(self, before: Measurement, run: Run, *, complete: bool) -> Measurement:
        """One run more, in the run folder at once: an interruption loses only the run that it cuts short."""
        metrics = metrics_of(run.records, run.counters)
        after = replace(before, runs=(*before.runs, run), metrics=(*before.metrics, metrics), complete=complete)
        self.measurements[-1] = after
        self._write()
        return after

