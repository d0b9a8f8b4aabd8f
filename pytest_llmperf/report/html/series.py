"""Columns that were sampled beside a run, as rows of a timeline: one row a unit, whatever the columns are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNITS = {
    "mhz": "MHz", "w": "W", "c": "°C", "celsius": "°C", "percent": "%", "bytes": "bytes", "kib": "KiB", "mib": "MiB",
    "gib": "GiB", "gb": "GB", "mb": "MB", "ms": "ms", "s": "s", "j": "J", "tokens": "tokens", "rpm": "rpm",
}  # fmt: skip
SHARES = ("usage", "share", "utilisation", "utilization")
TIME = "time_s"
MOST_POINTS = 300
SOURCES = {"server": "server", "gpu": "GPU"}
STYLES = ("", " (dotted)", " (dashed)", " (dash-dotted)")


def series_of(telemetry: Mapping[str, Mapping[str, Sequence[float | None]]]) -> list[dict[str, object]]:
    """Rows such as {"title": "GPU power, W", "lines": [{"name", "time_s", "values"}]}; columns of one unit share one.

    Columns that are as long as "time_s" are drawn; a column of flags or one without a number is not.
    """
    rows: dict[tuple[str, str], list[dict[str, object]]] = {}
    for source, columns in telemetry.items():
        time_s = columns.get(TIME, ())
        for name, values in columns.items():
            drawn = name != TIME and time_s and len(values) == len(time_s) and any(v is not None for v in values)
            if drawn:
                words, unit = words_and_unit(name)
                line: dict[str, object] = {"name": words, "time_s": _thinned(time_s), "values": _thinned(values)}
                rows.setdefault((source, unit), []).append(line)
    return [
        {"title": _title(source, unit, [str(line["name"]) for line in lines]), "lines": lines}
        for (source, unit), lines in rows.items()
    ]


def words_and_unit(column: str) -> tuple[str, str]:
    """What a column's name says.

    >>> words_and_unit("sm_clock_mhz"), words_and_unit("kv_usage"), words_and_unit("running")
    (('sm clock', 'MHz'), ('kv usage', 'share'), ('running', ''))
    """
    head, _, last = column.rpartition("_")
    if last in UNITS and head:
        return head.replace("_", " "), UNITS[last]
    return column.replace("_", " "), "share" if last in SHARES else ""


def _title(source: str, unit: str, names: Sequence[str]) -> str:
    what = ", ".join(f"{name}{STYLES[number % len(STYLES)]}" for number, name in enumerate(names))
    return f"{SOURCES.get(source, source)}: {what}" + (f", {unit}" if unit else "")


def _thinned(values: Sequence[float | None]) -> list[float | None]:
    step = -(-len(values) // MOST_POINTS)
    return [None if value is None else float(f"{value:.5g}") for value in values[::step]]
