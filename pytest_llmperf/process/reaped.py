"""How the processes of a unit ended: the report that `stop` returns and `reaped.json` keeps."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .scratch import write_whole

MOST_NAMED = 5  # segments in a message


@dataclass(frozen=True, slots=True)
class Reaped:
    """How one process of a unit ended.

    Args:
        pid: its process id.
        starttime: clock ticks since boot; with the pid its identity.
        name: as the kernel knew it.
        ending: "exit code 0", "signal 15 (SIGTERM)", or "collected by its own parent".
        sigkill: whether it needed SIGKILL.
    """

    pid: int
    starttime: int
    name: str
    ending: str
    sigkill: bool


@dataclass(frozen=True, slots=True)
class StopReport:
    """What stopping a unit took; also the content of `reaped.json`.

    Args:
        tag: of the unit.
        why: "stop", "parent gone", or "watchdog lost".
        reaped: every process that was alive when the stop began or came later, and the members.
        survivors: processes that even SIGKILL did not end, as Reaped with ending "alive".
        shm_removed: names of the shared-memory segments that the unit created, left behind and that were removed.
        shm_unproven: names of unused segments that appeared meanwhile; their creator is unknown, so they stay.
        duration_s: from the start of the stop to its end.
    """

    tag: str
    why: str
    reaped: tuple[Reaped, ...] = ()
    survivors: tuple[Reaped, ...] = ()
    shm_removed: tuple[str, ...] = ()
    shm_unproven: tuple[str, ...] = ()
    duration_s: float = 0.0

    @property
    def sigkilled(self) -> tuple[Reaped, ...]:
        """Those that did not end on SIGTERM."""
        return tuple(process for process in self.reaped if process.sigkill)

    @property
    def shm_note(self) -> str | None:
        """Note about shared-memory segments that were not removed; None if all were removed."""
        if not self.shm_unproven:
            return None
        shown = ", ".join(self.shm_unproven[:MOST_NAMED])
        more = len(self.shm_unproven) - MOST_NAMED
        return (f"Not removed from /dev/shm: {shown}{f' and {more} more' if more > 0 else ''}. The segments are "
                "unused, and their creator is unknown. Delete a segment if no other program needs the segment; "
                "reaped.json in the server's folder lists all names.")

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(asdict(self), indent=indent)

    @staticmethod
    def from_json(raw: Mapping[str, object]) -> StopReport:
        """Of a decoded JSON object."""
        lists = {key: tuple(Reaped(**item) for item in _list(raw[key])) for key in ("reaped", "survivors")}
        return StopReport(
            tag=str(raw["tag"]),
            why=str(raw["why"]),
            shm_removed=tuple(str(name) for name in _list(raw["shm_removed"])),
            shm_unproven=tuple(str(name) for name in _list(raw["shm_unproven"])),
            duration_s=float(str(raw["duration_s"])),
            **lists,
        )


def _list(value: object) -> list:  # type: ignore[type-arg]
    return value if isinstance(value, list) else []


def write_report(run_dir: Path, report: StopReport) -> None:
    """Write `reaped.json` atomically. If the write fails, the clean-up continues without the file."""
    try:
        write_whole(run_dir / "reaped.json", f"{report.to_json(indent=2)}\n".encode(), durable=True)
    except OSError as error:
        print(f"reaped.json not written: {error}", file=sys.stderr)  # noqa: T201
