"""Files and folders of one process: private, locked while the process lives, removed by a later run after its death.

The lock (flock) says whether the process lives: the kernel drops the lock when the process ends, in whatever way.
A process id would not do: another container may use the same folder and other process ids. What cannot be locked stays.
This module is part of the watchdog, which imports the standard library alone.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing is locked, and nothing is swept
    fcntl = None  # type: ignore[assignment]

BINARY = getattr(os, "O_BINARY", 0)
OWN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | BINARY
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


def is_private(folder: Path) -> bool:
    """Whether this is a folder, and no symbolic link, that belongs to this user and that nobody else may enter.

    Raises:
        OSError: the folder does not exist, or the system refuses to look at it.
    """
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def lock(
    path: Path, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o600, *, shared: bool = False
) -> int | None:
    """Lock a file or a folder, without waiting.

    Whoever removes a locked file holds its lock, so a lock counts only while its file still has the name.

    Args:
        path: what is locked; a symbolic link is not followed.
        flags, mode: of open(2).
        shared: several processes may hold the lock, each with `shared`.

    Returns:
        The descriptor that has the lock; None if another process has the lock, or has just removed the file.

    Raises:
        OSError: the file cannot be opened, or the file system has no locks.
    """
    descriptor = os.open(path, flags | OWN, mode)
    try:
        _flock(descriptor, shared=shared)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except FileNotFoundError:
        pass
    except BaseException as error:
        if not (isinstance(error, OSError) and error.errno in _BUSY):
            os.close(descriptor)
            raise
    os.close(descriptor)
    return None


def share(descriptor: int, path: Path) -> bool:
    """Let other processes hold this lock, too.

    Returns:
        False: another process has taken the lock in between, so the lock is lost.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        _flock(descriptor, shared=True)
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False


def leave_to_others(descriptor: int) -> bool:
    """Whether no other process holds this shared lock; then this process has it alone."""
    try:
        _flock(descriptor)
    except OSError:
        return False
    return True


def _flock(descriptor: int, *, shared: bool = False) -> None:
    if fcntl is None:
        raise OSError(errno.ENOSYS, "this system has no flock")
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


class Scratch:
    """A folder for files that nobody needs after this process.

    Args:
        parent: where it is made; private to this user.
        prefix: of its name.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        self._lock: int | None = None
        while self._lock is None:  # a sweep may take it for a dead process's before it is locked
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            self._lock = _locked_folder(self.path)

    def remove(self) -> None:
        """Remove it with all that it holds. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.leave()

    def leave(self) -> None:
        """Leave it for people to look at, until a later run sweeps it away. May be called again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked_folder(path: Path) -> int | None:
    """A descriptor of a folder, with a lock where the file system has locks; None if a sweep removed the folder."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    try:
        return lock(path, flags)
    except FileNotFoundError:
        return None
    except OSError:
        return os.open(path, flags | OWN)


def write_whole(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file atomically: readers see the old content or the new content.

    Args:
        durable: wait until the device has it.

    Raises:
        OSError: the file cannot be written; an old file stays whole. A device, a FIFO or a folder is not replaced.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "a device, a FIFO or a folder is never replaced", str(path))
    while not _written(path, path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp"), content, durable=durable):
        continue


def _written(path: Path, temporary: Path, content: bytes, *, durable: bool) -> bool:
    """False if a sweep has removed the temporary file while no process held its lock."""
    descriptor = _created(temporary)
    if descriptor is None:
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise
        return False
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return True


def _created(temporary: Path) -> int | None:
    """A new file, with its lock where the file system has locks."""
    try:
        return lock(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return os.open(temporary, os.O_WRONLY | BINARY)


def sweep(paths: Iterable[Path]) -> list[Path]:
    """Remove those of these files and folders that belong to this user and that no living process has locked."""
    return [path for path in paths if _swept(path)]


def temporaries(folders: Iterable[Path]) -> list[Path]:
    """The temporary files of `write_whole` in these folders."""
    left: list[Path] = []
    for folder in folders:
        with suppress(OSError):
            left += [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]
    return left


def _swept(path: Path) -> bool:
    try:
        status = path.lstat()
        is_folder = stat.S_ISDIR(status.st_mode)
        if status.st_uid != os.getuid() or not (is_folder or stat.S_ISREG(status.st_mode)):
            return False
        descriptor = lock(path, os.O_RDONLY | (os.O_DIRECTORY if is_folder else 0))
    except OSError:
        return False
    if descriptor is None:
        return False
    try:
        shutil.rmtree(path) if is_folder else path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
