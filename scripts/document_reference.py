"""Write the pages of docs/api/ and the tables of docs/verdicts.md from the product.

    python scripts/document_reference.py

Run it after a metric, a margin, an option, a setting, a command of `llmperf` or a public docstring has changed; a test
says so.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import cleandoc
from pathlib import Path

import api_reference
import pytest
from markdown_pages import table, with_part

from pytest_llmperf.cli.parser import parser
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.metrics import FAMILIES, STATS, Metric, Source, all_metrics

DOCS = Path(__file__).parents[1] / "docs"
BETTER = {"lower": "lower", "higher": "higher", "neither": "–"}


def main() -> None:
    for page in (DOCS / name for name in PAGES):
        page.write_text(with_tables(page.read_text(encoding="utf-8"), PAGES[page.name]), encoding="utf-8")
    for name, text in generated().items():
        (DOCS / "api" / name).write_text(text, encoding="utf-8")


def generated() -> dict[str, str]:
    """The pages of docs/api/."""
    return {name: api_reference.page(*parts()) for name, parts in api_reference.PAGES.items()} | {
        "command_line.md": _page(
            "Options, commands and settings",
            "[Command line and settings](../settings.md) has exit codes, examples and limits.",
            {"Options of pytest": options(), "Commands": commands(), "Settings": settings()}),
        "metrics.md": _page(
            "Table of metrics", "[Metrics](../metrics.md) says how they are measured.",
            {"Latencies of requests": latencies(), "Of a run": plain(Source.CLIENT),
             "Energy and cost": plain(Source.GPU), "From the server's counters": plain(Source.SERVER)}),
    }


def _page(title: str, text: str, tables: dict[str, str]) -> str:
    parts = [f"# {title}", text, api_reference.WRITTEN.format("the product")]
    return "\n\n".join([*parts, *(f"## {head}\n\n{table}" for head, table in tables.items())]) + "\n"


def with_tables(page: str, tables: "dict[str, Callable[[], str]]") -> str:
    """The page with every table written anew."""
    for name, write in tables.items():
        page = with_part(page, name, write())
    return page


def latencies() -> str:
    """A row per family of statistics of one sample."""
    rows = [(f"`{name}_…`", f"`{_formula_id(name)}/…`", family.formula, family.needs)
            for name, family in FAMILIES.items()]
    return (f"Each has the statistics {', '.join(f'`{stat}`' for stat in STATS)}, in ms: `ttft_p99` has the formula id "
            f"`{_formula_id('ttft')}/p99`.\n\n" + table(("metrics", "formula ids", "statistic of", "needs"), rows))


def _formula_id(family: str) -> str:
    return all_metrics()[f"{family}_{next(iter(STATS))}"].formula_id.partition("/")[0]


def plain(source: Source) -> str:
    """A row per metric that is no statistic of a latency. The definition of the duration stands in its own row."""
    chosen = [metric for metric in all_metrics().values() if metric.source is source and metric.family is None]
    rows = [(f"`{metric.name}{'(…)' if metric.limited else ''}`", metric.unit.value or "count",
             BETTER[metric.direction.value], f"`{metric.formula_id}`", metric.formula.partition("; duration_s is ")[0],
             metric.needs.replace("the server counters ", "")) for metric in chosen]
    return table(("metric", "unit", "better", "formula id", "formula", "needs"), rows)


def options() -> str:
    """A row per option that the plugin adds to pytest."""
    from pytest_llmperf.plugin.options import pytest_addoption

    ours = pytest.Parser(_ispytest=True)
    pytest_addoption(ours)
    rows = []
    for option in ours.getgroup("llmperf").options:
        given = option.attrs()
        wants = " / ".join(given.get("choices") or ()) or given.get("metavar") or ""
        rows.append((f"`{f'{option.names()[0]} {wants}'.strip()}`", str(given["help"]).replace("%%", "%")))
    return table(("option", "what it does"), rows)


def settings() -> str:
    """A row per key, told in the words of `Settings`."""
    documented = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", cleandoc(Settings.__doc__ or ""), re.MULTILINE)
    words = {name: " ".join(text.split()) for name, text in documented}
    return table(("key", "default", "what it is"),
                  [(f"`{key.name}`", _default(key.name), words[key.name]) for key in fields(Settings)])


def _default(name: str) -> str:
    value = getattr(Settings(), name)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}"
    return f"`{value}`" if value and isinstance(value, str) else "–"


def commands() -> str:
    """A row per command of `llmperf`, those of a group among them."""
    return table(("command", "what it does"), list(_below("llmperf", parser())))


def _below(name: str, of: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._get_subactions():
                path = f"{name} {choice.dest}"
                yield f"`{path}`", str(choice.help)
                yield from _below(path, action.choices[choice.dest])


def counts() -> str:
    """How many requests over the limit prove what, for independent ones."""
    from pytest_llmperf.stats.interval import fail_limit, pass_limit

    rows = []
    for n in (100, 300, 500, 1000, 5000):
        row = [f"{n}"]
        for share in (0.05, 0.01):
            low, high = pass_limit(n, share, 0.95), fail_limit(n, share, 0.95)
            row.append(f"{'never' if low is None else low} / {high}")
        rows.append(row)
    proves = "PASS if at most / FAIL if at least"
    return table(("requests", f"p95: {proves}", f"p99: {proves}"), rows)


def noise() -> str:
    """What is thought of each kind of metric before the data speak, and which margins it takes."""
    from pytest_llmperf.stats.priors import kind_of, margins_for, prior_for

    metrics_by_title: dict[str, list[Metric]] = {}
    for metric in all_metrics().values():
        metrics_by_title.setdefault(kind_of(metric).value, []).append(metric)
    rows = []
    for kind, metrics in metrics_by_title.items():
        figures = {}
        for hardware in ("GPU", "cpu"):
            prior, margins = prior_for(metrics[0], hardware), margins_for(metrics[0], hardware)
            figures[hardware] = (prior.run_sd, prior.session_sd, margins.negligible, margins.tolerated)
        by_figures = figures if figures["GPU"] != figures["cpu"] else {"GPU, cpu": figures["GPU"]}
        rows += [(kind, f"`{metrics[0].name}`", hardware, *(f"{100 * value:.3g} %" for value in values))
                 for hardware, values in by_figures.items()]
    return table(("kind of metric", "e.g.", "on", "run sd", "session sd", "negligible", "tolerated"), rows)


def looks() -> str:
    """The rule in a sentence, with the figures of the code."""
    from pytest_llmperf.stats.decision import GROSS_FACTOR, GROSS_MARGINS, LOOKS, SPENT, SUITE_ALPHA
    from pytest_llmperf.stats.priors import ENOUGH_DF, MARGINS_OF_TWO_SESSIONS, deciding_sessions
    from pytest_llmperf.stats.shift import SUITE_DF

    runs = ", then ".join(map(str, LOOKS))
    spent = ", ".join(f"{100 * share:.0f} %" for share in SPENT)
    return (f"Runs at each look: {runs}. All comparisons of a suite run share one error of {100 * SUITE_ALPHA:.0f} %, "
            "whatever `-k` selects. A test's share is proportional to its number of primary metrics (Holm's rule among "
            f"them). Up to and including each look {spent} of the share may be spent.\n\n"
            "**How much sessions differ** is learnt from the whole suite. Each metric's mean square between stored "
            "sessions, divided by the prior variance, is pooled over the metrics of its kind, or over the suite if the "
            f"kind has fewer than {ENOUGH_DF} degrees of freedom. The pooled ratio scales the prior of each metric, "
            f"which then weighs {SUITE_DF:g} degrees of freedom against the metric's own sessions.\n\n"
            f"**Until the suite has {ENOUGH_DF} degrees of freedom** only a gross regression fails: a loss of "
            f"{GROSS_MARGINS} tolerated margins or a factor of {GROSS_FACTOR:g}, whichever is less. One metric needs "
            f"{deciding_sessions(1)} stored sessions for that, two need {deciding_sessions(2)}, four "
            f"{deciding_sessions(4)}, and eight or more 2. A loss "
            f"against two stored sessions must also exceed {MARGINS_OF_TWO_SESSIONS} negligible margins.")


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "verdicts.md": {"counts": counts, "noise": noise, "looks": looks},
}

if __name__ == "__main__":
    main()
