"""What one pytest process keeps: hardware, settings, servers. Built when first asked for."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from random import Random

import pytest

from pytest_llmperf.clock import require_real_clock
from pytest_llmperf.config.emulation import GPUS, NOISE, Emulation, existing_coefficients
from pytest_llmperf.config.settings import (
    Settings,
    expanded,
    read_settings,
    with_engine_options,
    with_options,
    with_references,
)
from pytest_llmperf.engines.adapters import check_configured
from pytest_llmperf.engines.process.planted_flags import PlantedFlag, planted_flag
from pytest_llmperf.engines.process.pool import lock_of_this_machine
from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.model.status import Note, Status
from pytest_llmperf.plugin.progress import uncaptured, watch_of
from pytest_llmperf.process.scratch import lock
from pytest_llmperf.process.session_watchdog import SessionWatchdog
from pytest_llmperf.report.watch import Watch
from pytest_llmperf.results.conditions import field_rules
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.provenance import session_id
from pytest_llmperf.telemetry.hardware import Hardware, detect, emulated_hardware, take_share


class State:
    """Lazily built parts of a session; a run without performance tests builds none of them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.rerun: dict[str, list[str]] = {}  # how executions ended that were reported and then repeated
        self.failed_first: dict[str, str] = {}  # tests that did not fail in the end, and their executions
        self.verdicts: dict[str, str] = {}
        self.failed: set[str] = set()  # performance tests that failed, by node id
        self.plain_failures = 0
        self.left_open: set[str] = set()
        self.exited = False  # a failing test on a worker called pytest.exit; xdist makes an interrupt of it
        self.unended: list[str] = []  # what was started and would not end
        self.last_notes: list[str] = []  # notes while the last server stopped, after the end of the display
        self._closing = False
        self.subject = ""  # the test that runs now
        self.performance_tests = False  # whether one was collected
        self.watchdog: SessionWatchdog | None = None  # from the first measurement on

    @property
    def hardware_known(self) -> bool:
        return "hardware" in self.__dict__

    @property
    def session_known(self) -> bool:
        return "session_id" in self.__dict__

    @cached_property
    def emulation(self) -> Emulation | None:
        """What stands in for the engines; None: nothing does."""
        option = self.config.getoption
        if option("--emulate") is None:
            return None
        return Emulation(
            kind=option("--emulate"),
            clock=option("--emulate-clock"),
            faults=tuple(option("--emulate-fault")),
            noise=option("--emulate-noise") or NOISE,
            seed=option("--emulate-seed"),
            coefficients=existing_coefficients(self.config.rootpath / self.settings.baselines_dir, option("--emulate")),
        )

    @cached_property
    def planted(self) -> tuple[PlantedFlag, ...]:
        """Flags over those of every server that is started."""
        texts = self.config.getoption("--plant-flag")
        if not texts:
            return ()
        return tuple(map(planted_flag, texts))

    @cached_property
    def hardware(self) -> Hardware:
        if self.emulation is None:
            workers = getattr(self.config, "workerinput", {}).get("workercount", 1)
            return take_share(detect(), workers, self._take_position)
        return emulated_hardware(self.emulation.kind, GPUS)

    def _take_position(self, position: int) -> bool:
        """Hold a position among the workers of this session until this process ends. A worker that replaces a crashed
        worker takes the position of that worker."""
        return lock(lock_of_this_machine().with_name(f"worker-{self.session_id}-{position}.lock")) is not None

    @cached_property
    def settings(self) -> Settings:
        settings = with_options(read_settings(self.config.rootpath), self.config.getoption("--llmperf-set"))
        settings = with_engine_options(settings, self.config.getoption("--llmperf-engine"))
        settings = with_references(settings, self.config.getoption("--llmperf-reference"))
        if settings.engines:
            check_configured(settings.engines)
        if settings.compare_across or settings.same_build:
            field_rules(settings)  # refused before a server starts
        limit_s = self.config.getoption("--llmperf-extension-limit")
        return replace(
            settings,
            runs_dir=expanded(self.config.getoption("--llmperf-runs") or settings.runs_dir),
            extension_limit_s=settings.extension_limit_s if limit_s is None else limit_s,
        )

    @cached_property
    def session_id(self) -> str:
        """The same in the controller and all of its workers."""
        inherited_id: str | None = getattr(self.config, "workerinput", {}).get("llmperf_session")
        return inherited_id or session_id(datetime.now(UTC), Random())

    @cached_property
    def session(self) -> PerfSession:
        require_real_clock()  # before the session takes its date
        worker = getattr(self.config, "workerinput", {}).get("workerid", "")
        return PerfSession(
            self.settings,
            self.config.rootpath,
            self.hardware,
            self._show_status,
            worker,
            emulation=self.emulation,
            session_id=self.session_id,
            planted=self.planted,
            on_begin=self._watch_process,
            references=references_of(self.config),
        )

    def _watch_process(self, run_dir: Path) -> None:
        """Let a watchdog say it where this process ends without telling its verdicts."""
        if not sys.platform.startswith("linux"):
            return
        worker = getattr(self.config, "workerinput", {}).get("workerid")
        who = f"pytest{f' worker {worker}' if worker else ''} (pid {os.getpid()})"
        with uncaptured(self.config):  # the watchdog writes to the same standard error as pytest
            self.watchdog = SessionWatchdog(run_dir, who)

    def end_watchdog(self) -> None:
        """Ends the watchdog once the verdicts are reported."""
        if self.watchdog is not None:
            self.watchdog.end()

    def close(self) -> None:
        """Stop whatever this process started, and keep what would not end."""
        session: PerfSession | None = self.__dict__.get("session")
        if session is None:
            return
        self._closing = True
        try:
            session.close()
        except InfrastructureError as error:
            self.unended.append(getattr(error, "message", str(error)))
        del self.__dict__["session"]  # after an interrupt it stays, and is closed again before the process ends

    @cached_property
    def watch(self) -> Watch | None:
        """What shows this process's work; None if nobody wants to see it."""
        return watch_of(self.config)

    def rest(self) -> None:
        """pytest writes now."""
        if (watch := self.__dict__.get("watch")) is not None:
            watch.rest()

    def stop_showing(self) -> None:
        if (watch := self.__dict__.get("watch")) is not None:
            watch.close()

    def _show_status(self, status: Status) -> None:
        if self._closing and isinstance(status, Note):
            self.last_notes.append(status.text)
        elif self.watch is not None:
            self.watch.subject = self.subject
            self.watch.notify(status)


def references_of(config: pytest.Config) -> list[str]:
    """Engines for which `--llmperf-reference` names a build."""
    return [option.partition("=")[0] for option in config.getoption("--llmperf-reference")]


STATE = pytest.StashKey[State]()
