"""A transport whose load runs in processes of its own, undisturbed by tests, parsing and garbage collection."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load.cores import Cores
from pytest_llmperf.load.load_processes import LoadProcesses, local_load
from pytest_llmperf.load.recording import Recording, read_recording
from pytest_llmperf.load.schedule import problem_of
from pytest_llmperf.load.sharding import shards
from pytest_llmperf.load.transport import Progress, RecordingProcess, RunningMedians, progress_of_all
from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.process.places import scratch_folder
from pytest_llmperf.process.scratch import Scratch

if TYPE_CHECKING:
    from pytest_llmperf.load.load_hosts import LoadHosts

    RunningLoad = LoadProcesses | LoadHosts
    Loading = Callable[[LoadPlan, Path], AbstractContextManager[RunningLoad]]

_POLL_MS = 50


class ProcessTransport:
    """Implements `Transport` with children that run `load.worker`. Proxies of the environment are not used.

    Args:
        folder: where recordings are written; a temporary folder where None. A recording is removed after a replay that
            worked. After one that did not, the error names it, and the next run on this host removes it. Answers of an
            endpoint are removed in both cases.
        processes: that share the requests, by one schedule.
        cores: on which they run; None: wherever this process may.
        loading: runs the load processes of a plan elsewhere while a block runs, with recordings in the given folder;
            None: they run on this machine.
    """

    def __init__(
        self, *, folder: Path | None = None, processes: int = 1, cores: Cores | None = None,
        loading: Loading | None = None,
    ) -> None:
        self._folder = folder
        self._cores = cores or Cores.shared()
        self._loading = loading or (lambda plan, folder: local_load(shards(plan, processes), folder, self._cores))

    def replay(
        self,
        plan: LoadPlan,
        *,
        cancel: threading.Event,
        progress: Callable[[Progress], None] | None = None,
    ) -> Replay:
        """See `Transport.replay`."""
        if not hasattr(select, "epoll"):
            raise LoadError("The load generator needs Linux (epoll). Run it on a Linux host or in a container.")
        if (problem := problem_of(plan.requests)) is not None:
            raise LoadError(f"This plan cannot be replayed: {problem}. Correct `after` of the requests.")
        scratch = self._scratch()
        try:
            load = self._work(plan, scratch.path, cancel, progress)
        except BaseException:
            scratch.remove()
            raise
        try:
            replay = _read(load, plan, scratch.path)
        except BaseException:
            if plan.keeps_failed_recording:
                scratch.leave()
            else:
                scratch.remove()
            raise
        scratch.remove()
        return replay

    def _scratch(self) -> Scratch:
        folder = scratch_folder() if self._folder is None else self._folder
        try:
            return Scratch(folder, "load-")
        except OSError as error:
            raise LoadError(f"Answers cannot be recorded in {folder}: {error}. Free space there, or set TMPDIR to "
                            "another folder.") from error

    def _work(
        self, plan: LoadPlan, folder: Path, cancel: threading.Event, progress: Callable[[Progress], None] | None
    ) -> RunningLoad:
        """Start the load processes, send each process its part of the plan, and wait for the end of all processes."""
        reports: list[Progress] = []
        medians = RunningMedians()

        def report_progress(load: RunningLoad) -> None:
            if progress is not None and (latest := [worker.last for worker in load.workers]) != reports:
                reports[:] = latest
                progress(progress_of_all(load.workers, medians))

        with self._loading(plan, folder) as load:
            reports += [worker.last for worker in load.workers]
            while load.wait(_POLL_MS):
                if cancel.is_set():
                    load.cancel()
                report_progress(load)
        report_progress(load)
        return load


def _read(load: RunningLoad, plan: LoadPlan, folder: Path) -> Replay:
    recordings = [read_recording(worker.recording) for worker in load.workers]
    for worker, recording in zip(load.workers, recordings, strict=True):
        if worker.status != 0 or not recording.whole(worker.plan):
            raise LoadError(_death_report(worker, recording, folder if plan.keeps_failed_recording else None))
    return load.replay(recordings, plan)


def _death_report(worker: RecordingProcess, recording: Recording, folder: Path | None) -> str:
    status = worker.status
    how = (
        "hung and was ended" if worker.hung
        else f"was killed by signal {-status}" if status < 0
        else f"ended with exit code {status}"
    )
    last = f": {error_line}" if (error_line := worker.error_line) else ""
    where = f" on {worker.host}" if worker.host else ""
    done = f"{len(recording.exchanges)} of {len(worker.plan.requests)} requests"
    stays = "" if folder is None else f"\nwhat it recorded is in {folder} until the next run"
    return f"the load process{where} {how} after {done}{last}{stays}"
