"""Reads and writes the canonical text of a baseline: equal contents have equal bytes, and a changed metric is a changed
line. A wrong file is an error and never counts as a missing baseline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from pytest_llmperf.errors import BaselineError
from pytest_llmperf.results.baseline import LARGEST_TOLERATED, SCHEMA, Baseline, StoredMeasurement, StoredSession
from pytest_llmperf.results.strict_json import Node, parse

SESSION_FIELDS = ("id", "date", "commit", "host", "accepted", "anchor", "runs")


def decode(data: bytes, origin: str) -> Baseline:
    """Read a file, canonical or edited by hand.

    Args:
        origin: the file, for messages.

    Raises:
        BaselineError: with the file, the place in it and what to do.
    """
    top = parse(data, origin)
    schema = top.table().get("schema")
    if schema is None:
        top.refuse("its schema is missing")
    if schema.integer() > SCHEMA:
        raise BaselineError(
            f"{origin}: schema {schema.value}, and this pytest-llmperf reads {SCHEMA}. Install a newer one."
        )
    if schema.integer() != SCHEMA:
        schema.refuse(f"there never was a schema {schema.value}")
    fields = top.fields(("schema", "test", "measurements"))
    names = fields["measurements"].table()
    return Baseline(fields["test"].text(), {name: _stored(node) for name, node in names.items()})


def _stored(node: Node) -> StoredMeasurement:
    fields = node.fields(("fingerprint", "sessions", "metrics", "primaries", "formulas"), ("tolerated", "workload"))
    lines, metrics, formulas = fields["sessions"].items(), fields["metrics"].table(), fields["formulas"].texts()
    primaries = tuple(name.text() for name in fields["primaries"].items())
    rows = {metric: row.items() for metric, row in metrics.items()}
    for metric, row in rows.items():
        if len(row) != len(lines):
            metrics[metric].refuse(f"values of {len(row)} sessions, and there are {len(lines)}")
    if set(formulas) != set(metrics):
        fields["formulas"].refuse(f"not one per metric: {', '.join(sorted(set(formulas) ^ set(metrics)))}")
    if unknown := sorted(set(primaries) - set(metrics)):
        fields["primaries"].refuse(f"{', '.join(unknown)} has no values")
    sessions = [_stored_session(line, {metric: row[i] for metric, row in rows.items()}) for i, line in enumerate(lines)]
    _check(sessions, fields["sessions"])
    tolerated = _tolerated(fields.get("tolerated"), primaries)
    workload = fields["workload"].text() if "workload" in fields else None
    return StoredMeasurement(fields["fingerprint"].texts(), tuple(sessions), primaries, formulas, tolerated, workload)


def _tolerated(node: Node | None, primaries: tuple[str, ...]) -> dict[str, float]:
    margins: dict[str, float] = {}
    for name, value in ({} if node is None else node.table()).items():
        margin = value.number_or_none()
        if name not in primaries or margin is None or not 0 < margin < LARGEST_TOLERATED:
            value.refuse(f"{name} is no primary metric with a tolerated margin between 0 and {LARGEST_TOLERATED:g}")
        margins[name] = margin
    return margins


def _check(sessions: list[StoredSession], node: Node) -> None:
    ids = sorted(session.id for session in sessions)
    if twice := [id_ for id_, other in pairwise(ids) if id_ == other]:
        node.refuse(f"session {twice[0]} stands there twice")
    if sum(session.anchor for session in sessions) != 1:
        node.refuse("exactly one session is the anchor")


def _stored_session(line: Node, values: dict[str, Node]) -> StoredSession:
    fields = line.fields(SESSION_FIELDS, ("differs",))
    runs = tuple(_run(run) for run in fields["runs"].items())
    if not runs:
        fields["runs"].refuse("a session has at least one run")
    return StoredSession(
        id=fields["id"].text(),
        date=fields["date"].text(),
        commit=fields["commit"].text_or_none(),
        host=fields["host"].text(),
        accepted=fields["accepted"].text_or_none(),
        anchor=fields["anchor"].flag(),
        runs=runs,
        metrics={metric: _values(node, len(runs)) for metric, node in values.items()},
        differs={name: value.text_or_none() for name, value in fields["differs"].table().items()}
        if "differs" in fields else {},
    )


def _run(node: Node) -> tuple[int, int]:
    pair = [item.integer() for item in node.items()]
    if len(pair) != 2:
        node.refuse("a run is [seed, server start]")
    return pair[0], pair[1]


def _values(node: Node, runs: int) -> tuple[float | None, ...]:
    values = tuple(node.numbers())
    if len(values) != runs:
        node.refuse(f"{len(values)} values, and the session has {runs} runs")
    return values


DIGITS = 6
WHOLE_UP_TO = 1e15


def rounded(value: float) -> float:
    """As it is stored: six significant digits."""
    return float(f"{value:.{DIGITS}g}")


def encode(baseline: Baseline) -> bytes:
    """The file's bytes.

    Raises:
        ValueError: a value is not finite.
    """
    content = {
        "schema": SCHEMA,
        "test": baseline.test,
        "measurements": {name: _measurement(stored) for name, stored in baseline.measurements.items()},
    }
    # A lone surrogate has no UTF-8; what replaces it is its own JSON escape.
    return f"{_rendered(content)}\n".encode("utf-8", "backslashreplace")


def _measurement(stored: StoredMeasurement) -> dict[str, object]:
    content: dict[str, object] = {
        "fingerprint": dict(stored.fingerprint),
        "sessions": [_session(session) for session in stored.sessions],
        "metrics": {
            metric: [[_number(value) for value in session.values(metric)] for session in stored.sessions]
            for metric in stored.metrics
        },
        "primaries": list(stored.primaries),
        "formulas": dict(stored.formulas),
    }
    optional = {"tolerated": dict(stored.tolerated), "workload": stored.workload}
    return content | {name: value for name, value in optional.items() if value}


def _session(session: StoredSession) -> dict[str, object]:
    line: dict[str, object] = {name: getattr(session, name) for name in SESSION_FIELDS}
    return line | ({"differs": dict(session.differs)} if session.differs else {})


def _number(value: float | None) -> float | int | None:
    """Whole numbers without a point."""
    if value is None:
        return None
    if not isfinite(value):
        raise ValueError(f"{value} cannot be stored")
    short = rounded(value)
    return int(short) if short.is_integer() and abs(short) < WHOLE_UP_TO else short


def _rendered(value: object, indent: str = "") -> str:
    """Objects and lists of objects a line per entry, anything else on one line."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{_inline(key)}: {_rendered(value[key], inner)}" for key in sorted(value)]
        return _block("{", rows, "}", indent)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return _block("[", [_inline(item) for item in value], "]", indent)
    return _inline(value)


def _block(opening: str, rows: Sequence[str], closing: str, indent: str) -> str:
    return f",\n{indent}  ".join([f"{opening}\n{indent}  {rows[0]}", *rows[1:]]) + f"\n{indent}{closing}"


def _inline(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
