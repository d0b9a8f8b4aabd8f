"""What all tests of one process share."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmperf.clock import Clock, SystemClock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.adapters import check_configured
from pytest_llmperf.engines.launch import Launcher
from pytest_llmperf.engines.pool import EnginePool, lock_of_this_machine
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.load.transport import Transport
from pytest_llmperf.session.perf import Perf
from pytest_llmperf.telemetry.hardware import Hardware


class PerfSession:
    """Settings, hardware, the pool of servers, the run folder."""

    def __init__(
        self,
        settings: Settings,
        root: Path,
        hardware: Hardware,
        tell: Callable[[str], None],
        worker: str = "",
        *,
        clock: Clock | None = None,
        transport: Transport | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: random.Random | None = None,
    ) -> None:
        check_configured(settings.engines)
        self.settings = settings
        self.hardware = hardware
        self.tell = tell
        self.clock = clock or SystemClock()
        self.transport = transport or ProcessTransport()
        self.now = now
        stamp = f"{now():%Y%m%dT%H%M%SZ}"
        self.rng = rng or random.Random()
        self.run_dir = root / settings.runs_dir / f"{stamp}-{self.rng.getrandbits(24):06x}{worker}"
        launcher = Launcher(settings, root, self.run_dir, hardware.kind, self.clock, self.rng, tell)
        self.pool = EnginePool(launcher, lock_of_this_machine())

    def perf(self, test: str, kind: str) -> Perf:
        """The object for one test."""
        return Perf(self, test, kind)

    def close(self) -> None:
        """Stop whatever runs."""
        self.pool.close()
