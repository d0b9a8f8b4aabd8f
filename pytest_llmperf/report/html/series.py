"""What was sampled beside a run, as rows of a timeline: one row a unit, whatever the columns are called.

A run file holds a table a source, column by column (`model.telemetry`): `at_ns`, perhaps `device`, and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_llmperf.report.html.plot import DASHES, Line

Column = Sequence[float | None]
#: Suffix of a column's name → unit, and what its values are divided by.
UNITS = {
    "mhz": ("MHz", 1.0), "w": ("W", 1.0), "c": ("°C", 1.0), "pct": ("%", 1.0), "bytes": ("GiB", 2.0**30),
    "ms": ("ms", 1.0), "s": ("s", 1.0), "j": ("J", 1.0), "tokens": ("tokens", 1.0),
}  # fmt: skip
SHARES = ("usage", "share")
TIME, DEVICE = "at_ns", "device"
NOT_DRAWN = (TIME, DEVICE, "throttle_reasons")  # a bit mask has no height
MOST_POINTS = 300
SOURCES = {"server": "server", "gpu": "GPU"}


def telemetry_lines(telemetry: Mapping[str, Mapping[str, Column]], side: str, tone: int) -> dict[str, list[Line]]:
    """Title such as "GPU: power, W" → lines; columns of one unit share a row.

    A column that is not as long as `at_ns`, or has no number, is not drawn.

    Args:
        side: label of the measurement, with which each line's name begins.
        tone: number of the lines' colour.
    """
    rows: dict[tuple[str, str], tuple[list[Line], dict[str, int]]] = {}
    for source, columns in telemetry.items():
        for device, table in _by_device(columns):
            stamps_ns = table.get(TIME, ())
            for column, values in table.items():
                if column in NOT_DRAWN or len(values) != len(stamps_ns) or all(value is None for value in values):
                    continue
                words, unit, scale = words_and_unit(column)
                lines, dash_by_words = rows.setdefault((source, unit), ([], {}))
                dash = dash_by_words.setdefault(words, len(dash_by_words))
                lines.append(Line(f"{side} {words}{device}", _thinned(stamps_ns, 1e9), _thinned(values, scale), tone,
                                  dash))
    return {_title(*key, list(dash_by_words)): lines for key, (lines, dash_by_words) in rows.items()}


def words_and_unit(column: str) -> tuple[str, str, float]:
    """The words and the unit in the name of a column, and the divisor that converts its values to this unit.

    >>> words_and_unit("sm_clock_mhz"), words_and_unit("kv_usage"), words_and_unit("running")
    (('sm clock', 'MHz', 1.0), ('kv usage', 'share', 1.0), ('running', '', 1.0))
    """
    head, _, last = column.rpartition("_")
    if last in UNITS and head:
        return head.replace("_", " "), *UNITS[last]
    return column.replace("_", " "), "share" if last in SHARES else "", 1.0


def _by_device(columns: Mapping[str, Column]) -> Iterator[tuple[str, Mapping[str, Column]]]:
    """The table of each device, named where there are several."""
    devices = columns.get(DEVICE, ())
    device_numbers = sorted({int(device) for device in devices if device is not None})
    if len(device_numbers) < 2:
        yield "", columns
        return
    for device in device_numbers:
        chosen = [position for position, sample_device in enumerate(devices) if sample_device == device]
        table = {name: [values[at] for at in chosen] for name, values in columns.items() if len(values) == len(devices)}
        yield f", GPU {device}", table


def _title(source: str, unit: str, names: Sequence[str]) -> str:
    dashes = (DASHES[number % len(DASHES)] for number in range(len(names)))
    what = ", ".join(f"{name} ({dash})" if dash else name for name, dash in zip(names, dashes, strict=True))
    return f"{SOURCES.get(source, source)}: {what}" + (f", {unit}" if unit else "")


def _thinned(values: Column, scale: float) -> list[float | None]:
    step = -(-len(values) // MOST_POINTS)
    return [None if value is None else float(f"{value / scale:.5g}") for value in values[::step]]
