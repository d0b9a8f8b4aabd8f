"""What a report says of its session: origin, duration, emulation, planted flags, and skipped tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_llmperf.releases.stored import untested
from pytest_llmperf.results.conditions import PLANTED, VERSION
from pytest_llmperf.results.emulated_ground import notes
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import canary_entries, read_session

#: Keys of `session.json` that the page shows in other places than the list of facts.
APART = ("schema", "duration_s", "emulated")
#: Key, words and unit of each value of a canary.
CANARY_VALUES = (
    ("kernel_launch_us", "kernel launch", "µs"), ("kernel_round_trip_us", "launch and end", "µs"),
    ("to_host_gb_per_s", "GPU to host", "GB/s"), ("one_core_ms", "one core", "ms"),
    ("host_copy_gb_per_s", "host copy", "GB/s"),
)


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Facts about the session of a report.

    Args:
        origin: name and value of each fact that the run folder states as a text or a number.
        duration_s: from the start of pytest to the report, over all folders; None if no folder states it.
        emulated: what was emulated, with planted faults; "" on real hardware.
        planted: planted flags; "" without any.
        skipped: reason → number of skipped tests.
    """

    origin: tuple[tuple[str, str], ...] = ()
    duration_s: float | None = None
    emulated: str = ""
    planted: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)


def session_facts(folders: Sequence[Path], tests: Sequence[TestResult]) -> SessionFacts:
    """The facts of the run folders and of their tests' conditions."""
    sessions = [content for folder in folders if (content := read_session(folder))]
    origin = sessions[0] if sessions else {}
    canaries = dict.fromkeys(text for content in sessions for text in canary_texts(content))
    durations = [float(value) for content in sessions if isinstance(value := content.get("duration_s"), int | float)]
    emulated = [str(content["emulated"]) for content in sessions if content.get("emulated")]
    conditions = [measurement.conditions for test in tests for measurement in test.measurements]
    kinds = [each["hardware"] for each in conditions if each.get("hardware", "").startswith("emulated")]
    return SessionFacts(
        origin=tuple((name, str(value)) for name, value in origin.items()
                     if name not in APART and not isinstance(value, dict | list | None))
        + tuple(("canary", text) for text in canaries)
        + tuple(("engine version", note) for note in dict.fromkeys(version_notes(conditions))),
        duration_s=sum(durations) if durations else None,
        emulated=". ".join(dict.fromkeys([*(emulated or kinds), *notes(conditions)])),
        planted="; ".join(dict.fromkeys(each[PLANTED] for each in conditions if PLANTED in each)),
        skipped=_skipped(sessions),
    )


def version_notes(conditions: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """A note for each measurement of an engine's version that is not stored here."""
    for each in conditions:
        if note := untested(each.get("engine", ""), each.get(VERSION)):
            yield note


def canary_texts(session: Mapping[str, object]) -> list[str]:
    """A line per host: how fast it was at fixed work, as far as that was seen."""
    return [
        ", ".join([f"host {entry.get('host', '?')}"]
                  + [f"{words} {entry[name]:g} {unit}" for name, words, unit in CANARY_VALUES
                     if isinstance(entry.get(name), int | float)]
                  + ([f"GPU not seen: {entry['not_seen']}"] if "not_seen" in entry else []))
        for entry in canary_entries(session)
    ]


def _skipped(sessions: Sequence[Mapping[str, object]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for content in sessions:
        counts.update(dict(_counts(content.get("skipped"))))
    return dict(counts.most_common())


def _counts(skipped: object) -> Iterator[tuple[str, int]]:
    """The pairs that are a reason and a number: the file may be from anywhere."""
    if isinstance(skipped, dict):
        for reason, count in skipped.items():
            if isinstance(count, int):
                yield str(reason), count
