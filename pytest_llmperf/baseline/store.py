"""Read baselines, and write several at once under a lock.

Every file is old or new at any moment. An error before the first file is replaced changes no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from pytest_llmperf.baseline.paths import bare_test, baseline_path
from pytest_llmperf.baseline.text import decode, encode
from pytest_llmperf.bounded_file import check_inside, read_file
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.results.baseline import Baseline

FOLDER, LOCK = ".update", "lock"
SUFFIX = ".new"  # of a draft beside the file that it replaces
LOCK_TIMEOUT_S = 60.0
LOCK_POLL_S = 0.01


class Store:
    """The baselines in a folder.

    Args:
        root: the folder, e.g. PROJECT/baselines; made when something is first written.
        make_lock: a lock that the operating system frees when its holder dies.
        timeout_s: how long to wait for another process that is writing.
    """

    def __init__(
        self, root: Path, *, make_lock: Callable[[Path], BaseFileLock] = FileLock, timeout_s: float = LOCK_TIMEOUT_S
    ) -> None:
        self.root = root
        self._make_lock = make_lock
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"<Store {self.root}>"

    def read(self, test: str, kind: str) -> Baseline | None:
        """The baseline of one test, whose kind's parameter is not looked at; None where there is none.

        Raises:
            BaselineError: the baseline file is unreadable or invalid.
        """
        return self.owned(self._read(baseline_path(test, kind)), test, kind)

    def owned(self, baseline: Baseline | None, test: str, kind: str) -> Baseline | None:
        """A test's baseline, once its file is known to belong to that test.

        Raises:
            BaselineError: it belongs to another test.
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
        """Path → baseline, of all tests of a kind.

        Raises:
            BaselineError: a baseline file is unreadable or invalid.
        """
        return believed(self.read_each(kind))

    def read_each(self, kind: str) -> dict[str, Baseline | BaselineError]:
        """Path → baseline of every test of a kind; an error for a file that cannot be read."""
        folder = inside(self.root, baseline_path("x.py::x", kind).partition("/")[0])
        paths = sorted(path.relative_to(self.root).as_posix() for path in folder.glob("*/[!.]*.json"))
        baselines = {path: self._read_or_error(path) for path in paths}
        return {path: baseline for path, baseline in baselines.items() if baseline is not None}

    @contextmanager
    def update(self) -> Iterator[Callable[[Mapping[str, Baseline | None]], None]]:
        """Hold the lock from reading to writing, so that no update of another process is lost in between.

        Yields:
            Writes path → baseline; None removes a file. Raises BaselineError for a read-only folder, a full disk, …;
            the message says whether a file was changed.

        Raises:
            BaselineError: the lock cannot be had.
        """
        lock = self._acquire()
        try:
            self._discard_drafts()  # of a writer that was killed
            yield self._write
        finally:
            self._discard_drafts()  # of this update, if it failed
            lock.release()

    def _discard_drafts(self) -> None:
        for draft in list(self.root.rglob(f".*{SUFFIX}*")):
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def _acquire(self) -> BaseFileLock:
        path = self.root / FOLDER / LOCK
        lock = self._make_lock(path)
        try:
            self._prepare(path)
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

    @staticmethod
    def _prepare(lock: Path) -> None:
        """Make the folder of the lock, which git ignores.

        Raises:
            BaselineError: the folder or its lock is a link, through which another place would be written.
        """
        for path in (lock.parent, lock):
            if path.is_symlink():
                raise BaselineError(f"{path} is a symbolic link, and nothing is written through it. Remove the link.")
        if not (ignore := lock.with_name(".gitignore")).exists():
            lock.parent.mkdir(parents=True, exist_ok=True)
            write_whole(ignore, b"*\n")

    def _read_or_error(self, path: str) -> Baseline | BaselineError | None:
        try:
            return self._read(path)
        except BaselineError as error:
            return error

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
        targets = {inside(self.root, path): content for path, content in contents.items()}
        state = "Nothing was changed"
        try:
            for target, content in targets.items():
                if content is not None:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(_draft(target), content, durable=True)
            state = "Some files are new, and the others are old. Take the session in again: llmperf baselines take RUN"
            for target, content in targets.items():
                if content is None:
                    target.unlink(missing_ok=True)
                else:
                    _draft(target).replace(target)
        except OSError as error:
            raise BaselineError(f"{self.root} cannot be written: {error}. {state}.") from error


def inside(root: Path, path: str) -> Path:
    """The place of a relative path.

    Raises:
        BaselineError: it leads out of `root`, by its parts or by a symbolic link.
    """
    target = root / path
    try:
        check_inside(target if path else root.parent, root)
    except OSError as error:
        raise BaselineError(
            f"{target} leads out of the folder of baselines, {root}. Nothing is read or written there: "
            "remove the symbolic link, or name the test and its hardware kind without slashes and dots."
        ) from error
    return target


def _draft(target: Path) -> Path:
    return target.with_name(f".{target.name}{SUFFIX}")


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
