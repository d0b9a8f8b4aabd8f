"""Folders of files that are not results: the temporary folder, private folders below it, and the replacement of a home
that cannot be written."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pytest_llmperf.errors import InfrastructureError

from . import scratch, shm

#: Inode of the process namespace that the kernel makes first (PROC_PID_INIT_INO in include/linux/proc_ns.h).
FIRST_PID_NAMESPACE = 0xEFFFFFFC
OF_ONE_CONTAINER = {"overlay", "tmpfs", "fuse.fuse-overlayfs"}
EMPTY_DIR = "kubernetes.io~empty-dir"


def temporary_folder() -> Path:
    """TMPDIR, or the first of /tmp, /var/tmp, /usr/tmp and the current folder that can be written.

    Raises:
        InfrastructureError: none of these folders can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise InfrastructureError(no_temporary_folder(error)) from error


def no_temporary_folder(error: OSError) -> str:
    """What to do if no temporary folder can be written, as `tempfile.gettempdir` says."""
    return (f"{error.strerror}: uid {os.getuid()} can write none of them. Set TMPDIR to a folder that it can write, or "
            "mount one at /tmp; in a pod an emptyDir.")


def lock_folder(name: str = "llmperf-ports") -> Path:
    """The per-user folder of lock files. A folder of another user is refused.

    Raises:
        InfrastructureError: the folder cannot be made, or belongs to another user.
    """
    return private_folder(temporary_folder() / f"{name}-{os.getuid()}")


def scratch_folder() -> Path:
    """The per-user folder of scratch files, which end with their process. A folder of another user is refused.

    Raises:
        InfrastructureError: the folder cannot be made, or is no folder of this user.
    """
    return lock_folder("llmperf-scratch")


def private_folder(folder: Path) -> Path:
    """Make a folder that only this user may enter; refuse a folder of another user, and a symbolic link.

    Raises:
        InfrastructureError: the folder cannot be made, or other users may enter it.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        private = scratch.is_private(folder)
    except OSError as error:
        raise InfrastructureError(f"the folder {folder} cannot be made: {error}; set TMPDIR") from error
    if not private:
        raise InfrastructureError(
            f"{folder} is not a folder of uid {os.getuid()} that nobody else may enter; remove it, or set TMPDIR"
        )
    return folder


def writable(folder: Path) -> bool:
    """Whether a folder could be made and written; it need not exist. The function writes a file, because permission
    bits do not tell the truth everywhere, e.g. in /proc."""
    try:
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        with tempfile.TemporaryDirectory(prefix=".llmperf-", dir=nearest):
            return True
    except OSError:
        return False


def home_of(env: Mapping[str, str]) -> Path:
    """The home of a process with these variables; "~" if neither HOME nor the user has one."""
    return Path(env.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - Path's raises where there is no such user


def replaced_home() -> Path:
    """The folder that servers get in place of a home that cannot be written.

    Raises:
        InfrastructureError: the folder cannot be made, or is no folder of this user.
    """
    return lock_folder("llmperf-home")


def check_shared_memory(folder: Path = shm.FOLDER) -> None:
    """Write to shared memory before a server starts. Without shared memory the server would end after a minute or more.

    Raises:
        InfrastructureError: the shared memory cannot be written.
    """
    try:
        if sys.platform.startswith("linux"):
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InfrastructureError(
            f"{folder} cannot be written: {error.strerror}. The processes of an engine share memory there. "
            "Give the container shared memory: --shm-size=8g, or in a pod an emptyDir with `medium: Memory`."
        ) from error


def remarks(lock: Path, env: Mapping[str, str] = os.environ) -> list[str]:
    """Notes for the user: which other sessions the lock does not reach, and which home replaces the real one.

    Args:
        lock: lock file of this machine.
        env: variables of this process.
    """
    sentences = []
    if unlocked := not_shared_by(lock.parent):
        sentences.append(f"Sessions in {unlocked} of this host do not wait for this session: each has a separate "
                         f"{lock.parent.parent}. Mount one folder of the host in all of them, and set TMPDIR to it.")
    kin = lock.parent.name.rpartition("-")[0] + "-"
    others = {folder.name.removeprefix(kin) for folder in lock.parent.parent.glob(f"{kin}*")} - {str(os.getuid())}
    if uids := sorted(filter(str.isdecimal, others)):
        sentences.append(f"Sessions of uid {', '.join(uids)} on this host do not wait for this session, because each "
                         "user has a separate lock. Run all sessions of a host as one user.")
    if not writable(home := home_of(env)):
        sentences.append(f"The home {home} cannot be written: servers get {replaced_home()} as their home.")
    return sentences


def not_shared_by(folder: Path, proc: Path = Path("/proc/self")) -> str:
    """Which other sessions cannot see the files of this folder: "other containers", "other pods", or "" if all can.

    Args:
        proc: tells the namespace of process ids and the mounts of this process.
    """
    try:
        if (proc / "ns" / "pid").stat().st_ino == FIRST_PID_NAMESPACE:
            return ""
        mounts = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:  # no Linux
        return ""
    below = [mount for mount in mounts if folder.is_relative_to(mount[4])]
    mount = max(reversed(below), key=lambda mount: len(mount[4]), default=None)  # of equal points the last is on top
    if mount is None:
        return ""
    if EMPTY_DIR in mount[3]:
        return "other pods"
    return "other containers" if mount[mount.index("-") + 1] in OF_ONE_CONTAINER else ""
