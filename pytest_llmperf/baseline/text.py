"""The canonical text of a baseline: equal contents have equal bytes, and a changed metric is a changed line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite

from pytest_llmperf.baseline.decoding import SESSION_FIELDS, decode
from pytest_llmperf.results.baseline import SCHEMA, Baseline, StoredMeasurement, StoredSession

DIGITS = 6
WHOLE_UP_TO = 1e15

__all__ = ["decode", "encode", "rounded"]


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
