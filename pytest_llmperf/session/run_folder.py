"""The folder of a session's results, into which all of its workers write, and the store to which it is copied."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.process.pool import lock_of_this_machine
from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.model.status import Note, Notify, Starting
from pytest_llmperf.process.places import lock_folder, private_folder, scratch_folder, temporary_folder, writable
from pytest_llmperf.process.scratch import sweep, temporaries
from pytest_llmperf.results.profile import FOLDER as PROFILES
from pytest_llmperf.results.profile import UNFINISHED
from pytest_llmperf.session.provenance import FILE, add_canary, lacks_canary, provenance, write_provenance
from pytest_llmperf.telemetry.canary import canary
from pytest_llmperf.telemetry.hardware import Gpu


class RunFolder:
    """The run folder. Leftovers of killed runs are removed first, because the disk may be full of them.

    Args:
        settings, root: of the project.
        session_id: id of the session, which names the folder.
        host: digest of this host.
        now: the wall clock.
        notify: told where results go if the project's folder cannot be written.
        on_begin: called with the path before the first measurement.

    Raises:
        InfrastructureError: the path of the private folder belongs to another user.
    """

    def __init__(self, settings: Settings, root: Path, session_id: str, *, host: str, now: Callable[[], datetime],
                 notify: Notify, on_begin: Callable[[Path], None]) -> None:
        self._settings, self._root, self._id, self._host, self._now = settings, root, session_id, host, now
        self._notify, self._on_begin = notify, on_begin
        self._begun = self._canary_seen = False
        self.path = self._place() / session_id
        self._sweep()

    def begin(self) -> None:
        """Write the provenance to the run folder, before the first result.

        Raises:
            InfrastructureError: the run folder cannot be written.
        """
        if self._begun:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._hide_from_git()
            if not (self.path / FILE).exists():  # another worker of this session may have written it
                ignored = [self._settings.baselines_dir]
                write_provenance(self.path, provenance(self._root, self._id, self._now(), ignored, self._host))
        except OSError as error:
            raise InfrastructureError(f"The run folder cannot be written: {error}. Free space there, or choose a "
                                      "different folder with --llmperf-runs=DIR.") from error
        self._begun = True
        self._on_begin(self.path)

    def add_canary(self, gpu: Gpu) -> None:
        """Once per host of a run folder, while the GPU is free. If workers with a GPU each begin at the same time, the
        values of one worker stay."""
        if self._canary_seen:
            return
        self._canary_seen = True
        self.begin()
        with suppress(OSError, ValueError):  # data beside the results, which stand without it
            if lacks_canary(self.path, self._host):
                self._notify(Starting("the canary of this host"))
                add_canary(self.path, self._host, {"gpu": gpu.name, **canary()})

    def _place(self) -> Path:
        """The folder for run folders. If the project's folder is not writable, a private temporary folder is created.
        """
        folder = self._root / self._settings.runs_dir
        if writable(folder):
            return folder
        instead = private_folder(temporary_folder() / f"llmperf-runs-{self._id}")
        where = f"results go to {instead}. Name another folder with --llmperf-runs=DIR."
        self._notify(Note(f"{folder} cannot be written: {where}"))
        return instead

    def _sweep(self) -> None:
        """Remove what killed runs of this user have left: recordings, workers' lines, locks, half-written files."""
        if os.name != "posix":
            return
        runs = list(self.path.parent.iterdir()) if self.path.parent.is_dir() else []
        sweep(path for run in runs for path in (run / PROFILES).glob(f"{UNFINISHED}*"))
        sweep(temporaries(place for run in runs for place in (run, run / "tests", run / "requests")))
        with suppress(InfrastructureError):  # a folder of another user
            sweep(path for folder in (lock_folder(), lock_of_this_machine().parent) for path in folder.glob("*.lock"))
            sweep(scratch_folder().iterdir())

    def _hide_from_git(self) -> None:
        """What we write is nothing to commit; a folder that the user named is the user's."""
        ours = self._root / Settings().runs_dir
        ignore = ours.parent / ".gitignore"
        if self.path.parent == ours and not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
