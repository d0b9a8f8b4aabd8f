"""A redo log, which writes several files atomically.

The new content of each file is first written as `.NAME.new` next to its target. Then one rename creates the journal,
which lists these files; this rename commits the update. After a crash the next process repeats the renames onto the
targets, and deletes temporary files that no journal lists. Only the holder of the lock may call methods that change
files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pytest_llmperf.bounded_file import check_inside
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.results.strict_json import read_json


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


class Disk:
    """Plain files on a POSIX file system."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file and wait until the device has it. Nothing is written through a link or into a FIFO."""
        with open(path, "wb", opener=_open_own) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` by `source` atomically: a reader of `target` gets the whole old or the whole new file."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_empty(self, folder: Path) -> None:
        """Remove a folder unless something is in it."""
        with suppress(OSError):
            folder.rmdir()

    def sync_folder(self, path: Path) -> None:
        """Wait until the device has the names in a folder."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


FOLDER = ".update"
LOCK = "lock"
SUFFIX = ".new"

Stamp = tuple[int, int] | None


class Journal:
    """The log in `root/.update`.

    Args:
        root: the folder of all baselines.
        disk: what touches it.
    """

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root = root
        self.folder = root / FOLDER
        self._disk = disk
        self._path = self.folder / "journal.json"
        self._done = self.folder / "done.json"

    @property
    def pending(self) -> bool:
        """Whether an update has happened that some files do not show yet."""
        return self._path.exists()

    def stamp(self) -> Stamp:
        """Changes with every update that is finished."""
        try:
            status = self._done.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_ino, status.st_mtime_ns

    def prepare(self) -> None:
        """Make the log's own folder, which git ignores.

        Raises:
            BaselineError: the folder or its lock is a link, through which another place would be written.
        """
        for path in (self.folder, self.folder / LOCK):
            if path.is_symlink():
                raise BaselineError(f"{path} is a symbolic link, and nothing is written through it. Remove the link.")
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            self._disk.make_folder(self.folder)
            self._disk.write(ignore, b"*\n")
            self._disk.sync_folder(self.root)
            self._disk.sync_folder(self.root.parent)

    def commit(self, files: Mapping[str, bytes | None]) -> None:
        """Write all of `files`, path → content; None removes one.

        Raises:
            OSError: nothing was changed; or, where `pending`, the next one to come finishes the update.
        """
        targets = {path: inside(self.root, path) for path in files}
        try:
            for path, content in files.items():
                if content is not None:
                    self._disk.make_folder(targets[path].parent)
                    self._disk.write(_temporary(targets[path]), content)
            for folder in self._folders(targets.values()):
                self._disk.sync_folder(folder)
            draft = self.folder / f"journal{SUFFIX}"
            self._disk.write(draft, json.dumps({path: content is not None for path, content in files.items()}).encode())
            self._disk.rename(draft, self._path)
            self._disk.sync_folder(self.folder)
        except BaseException:
            with suppress(OSError):  # the next one to come discards what stays
                self._disk.remove(self._path)
                self._discard()
            raise
        self._apply(targets[path] for path in files if files[path] is not None)
        self._finish(targets[path] for path in files if files[path] is None)

    def recover(self) -> None:
        """Finish a committed update, and discard the files of an uncommitted update."""
        if self.pending:
            listed = read_json(self._path, self.root).table()
            targets = {path: inside(self.root, path) for path in listed}
            self._apply(targets[path] for path, node in listed.items() if node.flag())
            self._finish(targets[path] for path, node in listed.items() if not node.flag())
        self._discard()

    def _apply(self, targets: Iterable[Path]) -> None:
        targets = list(targets)
        for target in targets:
            if _temporary(target).exists():
                self._disk.rename(_temporary(target), target)
        for folder in self._folders(targets):
            self._disk.sync_folder(folder)

    def _finish(self, removed: Iterable[Path]) -> None:
        removed = list(removed)
        for target in removed:
            self._disk.remove(target)
        for folder in self._folders(removed):
            self._disk.sync_folder(folder)
        self._disk.rename(self._path, self._done)  # a journal that comes back after a power cut is only repeated

    def _folders(self, targets: Iterable[Path]) -> list[Path]:
        """The folders whose entries change, and those above them, which may be new."""
        above = {folder for target in targets for folder in target.parents if folder.is_relative_to(self.root)}
        return sorted(folder for folder in above if folder.is_dir())

    def _discard(self) -> None:
        for temporary in list(self.root.rglob(f".*{SUFFIX}")):
            self._disk.remove(temporary)
            for folder in temporary.parents:
                if folder == self.root:
                    break
                self._disk.remove_empty(folder)


def inside(root: Path, path: str) -> Path:
    """The place of a relative path.

    Raises:
        BaselineError: the path leads out of `root`, by its parts or by a symbolic link.
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


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}{SUFFIX}")
