"""A comparison of two runs as Markdown: for a pull request, a release note, or a step's summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.process.serverlog import plain
from pytest_llmperf.report.release import ComparedTest, Trend
from pytest_llmperf.results.ended_test import GOOD, counts

#: A GitHub comment takes 65,536 characters, a step's summary more.
MOST_CHARACTERS = 60_000
ROWS = (10_000, 100, 30, 10, 3)
WORDS = {Verdict.FAIL: "worse", Verdict.IMPROVED: "better", Verdict.PASS: "same", Verdict.INCONCLUSIVE: "undecided"}
RULE = (
    "A metric is worse or better if a change beyond its negligible margin is proven, seed by seed, with an error "
    "probability of 1 % for the whole report. A metric is the same if its interval lies within the tolerated margin. "
    "The result is provisional, because each side has a single session."
)


@dataclass(frozen=True, slots=True)
class LinkedRun:
    """A run's name, and where it can be looked at; "" where nowhere."""

    name: str
    link: str = ""

    def __str__(self) -> str:
        place = self.link.replace(" ", "%20").replace(")", "%29")
        return f"[{cell(self.name)}]({place})" if place else cell(self.name)


def markdown(
    compared: Sequence[ComparedTest], before: LinkedRun, after: LinkedRun, *, most_characters: int = MOST_CHARACTERS
) -> str:
    """The report in Markdown. If the text exceeds `most_characters`, tables lose rows and state the number of lost
    rows.
    """
    text = ""
    for rows in ROWS:
        text = "\n".join(_lines(compared, before, after, rows)) + "\n"
        if len(text) <= most_characters:
            break
    return text


def cell(text: str) -> str:
    """Text that neither ends a cell nor becomes a tag, a link or a mention."""
    line = " ".join(plain(text).split())
    for char, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("@", "&#64;"), ("[", "&#91;"),
                       ("*", "&#42;"), ("`", "&#96;")):
        line = line.replace(char, safe)
    return line


def code(text: str) -> str:
    """A name as it is; GitHub takes the bar's backslash off inside a table."""
    line = " ".join(plain(text).split()).replace("`", "'").replace("|", "\\|")
    return f"`{line}`"


def _lines(compared: Sequence[ComparedTest], before: LinkedRun, after: LinkedRun, rows: int) -> Iterator[str]:
    by_trend = {trend: [compared_test for compared_test in compared if compared_test.trend is trend] for trend in Trend}
    yield f"## Performance: {before} → {after}"
    yield ""
    yield " · ".join(_count(trend, chosen) for trend, chosen in by_trend.items() if chosen)
    yield ""
    yield f"{after}: {_spaced(counts(test.after.ending for test in compared if test.after is not None))}"
    if emulated := sorted(kind for kind in _hardware(compared) if kind.startswith("emulated")):
        yield ""
        yield f"> {', '.join(map(cell, emulated))}: nothing of that was measured on hardware."
    for trend, chosen in by_trend.items():
        for open_ in (True, False):
            if part := [compared_test for compared_test in chosen if _is_still_undecided(compared_test) is open_]:
                yield ""
                yield from _section(trend, part, rows, folded=trend is Trend.STAYED and not open_)
    yield ""
    yield f"<sub>{RULE}</sub>"


def _count(trend: Trend, chosen: Sequence[ComparedTest]) -> str:
    """"**3 stayed** (1 FAIL)": that nothing changed makes nothing good."""
    verdicts = Counter(_spaced(test.after.outcome) for test in chosen
                       if test.after is not None and _is_still_undecided(test))
    apart = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    return f"**{len(chosen)} {trend.value}**" + (f" ({apart})" if apart else "")


def _is_still_undecided(compared: ComparedTest) -> bool:
    """Whether it stayed what is not green."""
    return (
        compared.trend is Trend.STAYED
        and compared.after is not None
        and compared.after.outcome not in GOOD
    )


def _hardware(compared: Sequence[ComparedTest]) -> set[str]:
    tests = [
        test for compared_test in compared for test in (compared_test.before, compared_test.after) if test is not None
    ]
    return {measurement.conditions.get("hardware", "unknown") for test in tests for measurement in test.measurements}


def _section(trend: Trend, chosen: Sequence[ComparedTest], rows: int, *, folded: bool) -> Iterator[str]:
    title = trend.value.capitalize()
    yield f"<details><summary>{title}: {len(chosen)}</summary>" if folded else f"### {title}"
    yield ""
    yield "| test | verdict | metric | before | after | change | 90 % CI | |"
    yield "|---|---|---|---:|---:|---:|---|---|"
    for compared_test in chosen[:rows]:
        yield from _rows(compared_test)
    if len(chosen) > rows:
        yield f"| … and {len(chosen) - rows} more: see the runs | | | | | | | |"
    differing = dict.fromkeys(row for compared_test in chosen[:rows] for row in compared_test.differing_conditions)
    if differing and not folded:
        yield ""
        yield "Changed with it: " + "; ".join(f"{code(name)} {cell(was)} → {cell(now)}" for name, was, now in differing)
    if folded:
        yield ""
        yield "</details>"


def _rows(compared: ComparedTest) -> Iterator[str]:
    decision = "" if compared.after is None else compared.after.ending.decided_by
    reasons = dict.fromkeys(filter(None, (decision, compared.reason, *compared.powers)))
    lines = "".join(f"<br>{cell(reason)}" for reason in reasons)
    head = f"| {code(compared.test)}{lines} | {_spaced(compared.verdicts)} |"
    for change in compared.changes:
        yield (f"{head} {code(change.metric)} | {cell(change.before)} | {cell(change.after)} | {change.change} | "
               f"{change.interval} | {WORDS.get(change.verdict, '')} |")
        head = "| | |"
    if not compared.changes:
        yield f"{head} | | | | | |"


def _spaced(outcome: str) -> str:
    return outcome.replace("_", " ")
