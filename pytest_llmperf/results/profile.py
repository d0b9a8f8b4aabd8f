"""A trace of a measured workload in the run folder: its files, and how the traced time is divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from pytest_llmperf.results.strict_json import Node
from pytest_llmperf.telemetry.torch_trace import Breakdown

FOLDER = "profiles"
UNFINISHED = ".trace-"  # begin of the name of a folder of traces that a server still writes
HEADINGS = {"matrix": "matrix products"}  # of the parts whose own name is no term


@dataclass(frozen=True, slots=True)
class Profile:
    """The trace of one measurement, or the reason why the measurement has no trace.

    Args:
        measurement: number of the measurement in its test, from 1.
        engine: the spec of the traced server, as text, secrets masked.
        files: paths in the run folder, by rank; empty if the trace was dropped or was not made.
        ranks: how the time of each rank is divided; empty without a readable trace.
        problem: why a trace is missing or dropped; "" if all traces were kept.
        nsys: path of the capture of Nsight Systems in the run folder; "" without a capture.
    """

    measurement: int
    engine: str
    files: tuple[str, ...] = ()
    ranks: tuple[Breakdown, ...] = ()
    problem: str = ""
    nsys: str = ""

    def __str__(self) -> str:
        """One line: the files, the shares of all ranks, and the problem."""
        place = ", ".join(filter(None, (*self.files, self.nsys))) or "no trace"
        parts = [place, *([shares_text(self.ranks)] if self.ranks else []), *([self.problem] if self.problem else [])]
        return f"profile of {self.engine}: {'; '.join(parts)}"


def shares_text(ranks: tuple[Breakdown, ...]) -> str:
    """"attention 11 %, matrix products 14 %, communication 0 %, other 16 %, idle 58 %"; ranges over several ranks."""
    parts = []
    for heading in shares_by_heading(ranks[0]):
        shares = sorted(f"{100 * shares_by_heading(rank)[heading]:.0f}" for rank in ranks)
        low, high = min(shares, key=int), max(shares, key=int)
        parts.append(f"{heading} {low if low == high else f'{low}–{high}'} %")
    return ", ".join(parts)


def shares_by_heading(rank: Breakdown) -> dict[str, float]:
    """Share of the traced time of each part, 0…1, by the heading of the part."""
    return {HEADINGS.get(name, name): share for name, share in rank.shares.items()}


def profile_from(node: Node) -> Profile:
    """The profile of a run file.

    Raises:
        BaselineError: a value is missing or has another type.
    """
    values = node.fields(("measurement", "engine", "files", "ranks", "problem"), ("nsys",))
    return Profile(
        measurement=values["measurement"].integer(),
        engine=values["engine"].text(),
        files=tuple(file.text() for file in values["files"].items()),
        ranks=tuple(_breakdown_from(rank) for rank in values["ranks"].items()),
        problem=values["problem"].text(),
        nsys=values["nsys"].text() if "nsys" in values else "",
    )


def _breakdown_from(node: Node) -> Breakdown:
    values: Mapping[str, Node] = node.fields([each.name for each in fields(Breakdown)])
    texts = {name: values[name].text() for name in ("device", "all_reduce_name")}
    numbers = {name: value.number_or_none() for name, value in values.items() if name not in texts}
    if any(number is None for name, number in numbers.items() if name != "all_reduce_median_us"):
        node.refuse("a time is missing")
    return Breakdown(**texts, **numbers)  # type: ignore[arg-type]
