"""Settings of flags on a command line, and the table of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from pytest_llmperf.cli import target
from pytest_llmperf.errors import UsageError
from pytest_llmperf.judging.change import SETTINGS_CONFIDENCE
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.report.table import aligned
from pytest_llmperf.session.setting_rows import Setting, SettingRow, standings

CELL_CHARACTERS = 140


def combinations_of(texts: Sequence[str]) -> list[Setting]:
    """Every combination of "NAME=V1,V2" texts, the last flag fastest; one value alone may be JSON.

    Raises:
        UsageError: a text has no such form, or a flag stands twice.
    """
    grid: dict[str, list[object]] = {}
    for text in texts:
        name, values = target.flag(text)
        if isinstance(values, str):
            values = [target.flag_value(part) for part in values.split(",")]
        listed = values if isinstance(values, list) else [values]
        if not listed or "" in listed or name in grid:
            raise UsageError(f"--try {text}: write each flag once, as NAME=V1,V2, e.g. max_num_seqs=32,64.")
        grid[name] = list(listed)
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []


def names_of(settings: Iterable[Setting]) -> list[str]:
    """Every flag of some settings, each once."""
    return list(dict.fromkeys(name for flags in settings for name in flags))


def settings_table(rows: Sequence[SettingRow], names: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """The table; a star marks the Pareto front, a tilde what is not proven to be beaten.

    A cell has the beginning of a long problem. The whole text follows below the table, each text once.
    """
    table = [("", *names, *metrics, "")]
    whole: list[str] = []
    for row, standing in zip(rows, standings(rows, metrics), strict=True):
        values = [row.metrics.get(name) for name in metrics]
        cells = ["-" if value is None else find(name).unit.show(value)
                 for name, value in zip(metrics, values, strict=True)]
        flags = (str(row.flags.get(name, "default")) for name in names)
        problem = beginning(row.problem)
        if problem != row.problem:
            if row.problem not in whole:
                whole.append(row.problem)
            problem += f" [{whole.index(row.problem) + 1}]"
        table.append((standing.value, *flags, *cells, problem))
    return [
        *aligned(table),
        f"* Pareto front: no other setting has means as good in {', '.join(metrics)} and better in one",
        f"~ another setting has such means, and no difference between the two is proven ({SETTINGS_CONFIDENCE:.0%})",
        *(f"[{number}] {problem}" for number, problem in enumerate(whole, start=1)),
    ]


def beginning(text: str) -> str:
    """The first sentences of a text that fit into a cell of a table, or a part of the first sentence."""
    if len(text) <= CELL_CHARACTERS:
        return text
    end = text.rfind(". ", 0, CELL_CHARACTERS) + 1
    return text[:end] if end else f"{text[:CELL_CHARACTERS - 1]}…"
