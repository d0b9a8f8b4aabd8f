"""Read baselines, and write several at once under a lock. A reader sees all files of an update or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from pytest_llmperf.baseline.journal import LOCK, Disk, Journal, inside
from pytest_llmperf.baseline.paths import bare_test, baseline_path
from pytest_llmperf.baseline.text import decode, encode
from pytest_llmperf.bounded_file import read_file
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.results.baseline import Baseline

LOCK_TIMEOUT_S = 60.0
LOCK_POLL_S = 0.01


class Store:
    """The baselines in a folder.

    Args:
        root: the folder, e.g. PROJECT/baselines; made when something is first written.
        disk: what touches it.
        make_lock: a lock that the operating system frees when its holder dies.
        timeout_s: how long to wait for another process that is writing.
    """

    def __init__(
        self,
        root: Path,
        *,
        disk: Disk | None = None,
        make_lock: Callable[[Path], BaseFileLock] = FileLock,
        timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        self.root = root
        self._disk = disk or Disk()
        self._journal = Journal(root, self._disk)
        self._make_lock = make_lock
        self._timeout_s = timeout_s

    def read(self, test: str, kind: str) -> Baseline | None:
        """The baseline of one test, whose kind's parameter is not looked at; None if there is none.

        Raises:
            BaselineError: the baseline file is unreadable or invalid.
        """
        self._settle()
        return self.owned(self._read(baseline_path(test, kind)), test, kind)

    def owned(self, baseline: Baseline | None, test: str, kind: str) -> Baseline | None:
        """A test's baseline, once its file is known to belong to that test.

        Raises:
            BaselineError: the file belongs to another test.
        """
        path = baseline_path(test, kind)
        owner = bare_test(test, kind)
        if baseline is not None and baseline.test != owner:
            raise BaselineError(
                f"{self.root / path} belongs to {baseline.test}, not to {owner}. If the test was moved, correct "
                '"test" in the file. If both tests exist, rename a test or its file.'
            )
        return baseline

    def read_all(self, kind: str) -> dict[str, Baseline]:
        """Path → baseline, of all tests of a kind, in a consistent state between two updates.

        Raises:
            BaselineError: a baseline file is unreadable or invalid.
        """
        return believed(self.read_each(kind))

    def read_each(self, kind: str) -> dict[str, Baseline | BaselineError]:
        """Path → baseline of every test of a kind, as one update left them; an error for a file that cannot be read.

        Raises:
            BaselineError: an interrupted update cannot be finished, or the lock cannot be had.
        """
        self._settle()
        stamp = self._journal.stamp()
        baselines = self._read_kind(kind)
        if self._journal.pending or self._journal.stamp() != stamp:  # another process is writing
            with self._locked():
                return self._read_kind(kind)
        return baselines

    @contextmanager
    def update(self) -> Iterator[Callable[[Mapping[str, Baseline | None]], None]]:
        """Hold the lock from reading to writing, so that no update of another process is lost in between.

        Yields:
            Writes all files of path → baseline, or none; None removes a file. Raises BaselineError for a read-only
            folder, a full disk, …; the message says whether a file was changed.

        Raises:
            BaselineError: the lock cannot be had.
        """
        with self._locked():
            yield self._write

    def _settle(self) -> None:
        """Finish what a killed writer left."""
        if self._journal.pending:
            with self._locked():
                pass

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._acquire()
        try:
            try:
                self._journal.recover()
            except OSError as error:
                raise BaselineError(
                    f"{self.root}: an update that was interrupted cannot be finished: {error}. "
                    "Make the folder writable, and look whether its disk is full."
                ) from error
            yield
        finally:
            lock.release()

    def _acquire(self) -> BaseFileLock:
        path = self._journal.folder / LOCK
        lock = self._make_lock(path)
        try:
            self._journal.prepare()
            lock.acquire(timeout=self._timeout_s, poll_interval=LOCK_POLL_S)
        except Timeout as error:
            raise BaselineError(
                f"Another process has been updating {self.root} for {self._timeout_s:g} s (lock {path}). "
                "Nothing was changed; try again when it has ended."
            ) from error
        except (OSError, NotImplementedError) as error:
            raise BaselineError(
                f"{self.root} cannot be locked: {error}. Nothing was changed. Baselines are written only under a "
                "lock: use a writable folder on a local disk."
            ) from error
        if isinstance(lock, SoftFileLock):  # what filelock falls back to; a killed holder would keep it for ever
            lock.release()
            raise BaselineError(
                f"The file system of {self.root} has no locks. Nothing was changed: use a folder on a local disk."
            )
        return lock

    def _read_kind(self, kind: str) -> dict[str, Baseline | BaselineError]:
        baselines = {path: self._read_or_error(path) for path in self._paths(kind)}
        return {path: baseline for path, baseline in baselines.items() if baseline is not None}

    def _read_or_error(self, path: str) -> Baseline | BaselineError | None:
        try:
            return self._read(path)
        except BaselineError as error:
            return error

    def _paths(self, kind: str) -> list[str]:
        folder = inside(self.root, baseline_path("x.py::x", kind).partition("/")[0])
        return sorted(path.relative_to(self.root).as_posix() for path in folder.glob("*/[!.]*.json"))

    def _read(self, path: str) -> Baseline | None:
        target = inside(self.root, path)
        try:
            data = read_file(target, self.root)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BaselineError(f"{target} cannot be read: {error.strerror}.") from error
        return decode(data, str(target))

    def _write(self, files: Mapping[str, Baseline | None]) -> None:
        if not files:
            return
        contents = {path: None if baseline is None else encode(baseline) for path, baseline in files.items()}
        for path, content in contents.items():
            if content is not None:
                decode(content, path)  # what could not be read again is never written
        try:
            self._journal.commit(contents)
        except OSError as error:
            state = (
                "The update is written down, and whoever reads next finishes it"
                if self._journal.pending
                else "Nothing was changed"
            )
            raise BaselineError(f"{self.root} cannot be written: {error}. {state}.") from error


def believed(baselines: Mapping[str, Baseline | BaselineError]) -> dict[str, Baseline]:
    """Path → baseline.

    Raises:
        BaselineError: a baseline file is unreadable or invalid.
    """
    for baseline in baselines.values():
        if isinstance(baseline, BaselineError):
            raise baseline
    return readable(baselines)


def readable(baselines: Mapping[str, Baseline | BaselineError]) -> dict[str, Baseline]:
    """Path → baseline, without files that cannot be read or believed."""
    return {path: baseline for path, baseline in baselines.items() if not isinstance(baseline, BaselineError)}
