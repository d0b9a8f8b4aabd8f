"""A session on the emulator that can be had again and again, each time with noise of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.calibration.restarted_engines import Restarter
from pytest_llmperf.calibration.simulator import PlannedRequests, Simulator
from pytest_llmperf.config.emulation import GPUS, Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.process.emulated import VirtualLauncher
from pytest_llmperf.engines.process.pool import EnginePool
from pytest_llmperf.results.baseline import Baseline
from pytest_llmperf.results.conditions import EMULATED, FieldRules, field_rules
from pytest_llmperf.session.perf_session import STEADY_AGE_S, PerfSession
from pytest_llmperf.session.replay import Replayer, Watch, stream_limits
from pytest_llmperf.session.stored_baselines import Baselines
from pytest_llmperf.telemetry.hardware import emulated_hardware


class DrawnBaselines(Baselines):
    """Baselines of one kind, which a calibration may replace by `draw`. The folder stays as it is.

    The noise that is estimated from baselines, between runs and between starts, is that of the drawn ones.
    """

    def __init__(self, store: Store, kind: str, host: str, rules: FieldRules) -> None:
        super().__init__(store, host, rules)
        self._kind = kind
        self.draw(store.read_all(kind))

    def draw(self, drawn: Mapping[str, Baseline]) -> None:
        """Let every test compare with these baselines: path of the file → baseline."""
        self.drawn = dict(drawn)
        self._by_kind[self._kind] = dict(drawn)
        self._run_sds.clear()
        self._start_sds.clear()


class EmulatedSession(PerfSession):
    """Settings, baselines and restarting engines for suite runs.

    Everything that judges is the product's; engines restart in their process, and nothing is written.

    Args:
        settings, root: of the project.
        emulation: what is emulated; its seed is not looked at.
        steady_age_s: as in `EnginePool`.
    """

    def __init__(self, settings: Settings, root: Path, emulation: Emulation, steady_age_s: float = STEADY_AGE_S
                 ) -> None:
        super().__init__(settings, root, emulated_hardware(emulation.kind, GPUS), notify=lambda _status: None,
                         worker=f"p{os.getpid()}", rng=random.Random(0), emulation=emulation,
                         steady_age_s=steady_age_s)
        self._planned_requests: PlannedRequests = {}
        self.drawn_baselines = DrawnBaselines(Store(root / settings.baselines_dir), f"{EMULATED}{emulation.kind}",
                                              self.host, field_rules(settings))
        self.baselines = self.drawn_baselines

    def _in_virtual_time(self, root: Path, emulation: Emulation) -> EnginePool:
        pool = super()._in_virtual_time(root, emulation)
        if not isinstance(pool.launcher, VirtualLauncher):
            raise TypeError(f"{pool.launcher} does not emulate in virtual time")
        self.restarter = Restarter(pool.launcher)
        return self._virtual_pool(self.restarter)

    def begin_suite_run(self, suite_run: int) -> None:
        """A new session: no engine runs, and the noise is that of this suite run."""
        self.pool.close()
        self.restarter.suite_run = suite_run
        self.pool = self._virtual_pool(self.restarter)

    def replayer(self, progress: Watch | None, *, gauges: bool, keep: tuple[str, ...]) -> Replayer:  # noqa: ARG002
        """One that needs no gauges and no GPUs, which an emulator does not have."""
        return Simulator(self.transport, self.now, clock=self.clock, limits=stream_limits(self.settings),
                         timeout_s=self.settings.measure_timeout_s, keep=keep, planned_requests=self._planned_requests)

    def close(self) -> None:
        super().close()
        self.restarter.close()
