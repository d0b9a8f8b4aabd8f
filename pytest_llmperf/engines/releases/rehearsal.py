"""What an upgrade of an engine touches in suites, before any server starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_llmperf.engines.releases.suite_uses import Uses
from pytest_llmperf.releases.changes import ABSENT, DEFAULT, GONE, NEW, VALUES, WORDS, Change

SHOWN_TESTS = 3
PYTORCH = "torch"
ON_A_PAGE = re.compile(r"_(total|bucket|sum|count)$")


@dataclass(frozen=True, slots=True)
class Touch:
    """One difference that tests meet.

    Args:
        tests: names of these tests.
        text: what happens, and what to write.
        is_all: whether these are all tests on the engine.
        breaks: whether the tests cannot run as they are.
    """

    change: Change
    tests: tuple[str, ...]
    text: str
    is_all: bool
    breaks: bool

    def __str__(self) -> str:
        if self.is_all:
            return f"{self.text} [all {len(self.tests)} tests]"
        more = f" and {len(self.tests) - SHOWN_TESTS} more" if len(self.tests) > SHOWN_TESTS else ""
        return f"{self.text} [{', '.join(self.tests[:SHOWN_TESTS])}{more}]"


def rehearse(found: Sequence[Change], tests: Sequence[Uses], package: Uses) -> tuple[list[Touch], list[Change]]:
    """Sort the differences between two versions: differences that touch tests, and the rest.

    Args:
        found: all differences between the two versions.
        tests: tests on the engine.
        package: what this package itself writes for every test on the engine.
    """
    touches = [touch for change in found for touch in _touches(change, tests, package)]
    met = {touch.change for touch in touches}
    return touches, [change for change in found if change not in met]


def _touches(change: Change, tests: Sequence[Uses], package: Uses) -> Iterator[Touch]:
    everyone = tuple(each.test for each in tests)
    users = tuple(each.test for each in tests if _is_named(change, each)) or (
        everyone if _is_named(change, package) else ())
    if change.section == "sources":
        text = (f"The source that our table of defaults cites has changed: {change.name}, which decides "
                f"{change.instead}. Compare the resolved values of a start.")
        met, breaks = everyone, False
    elif change.section == "packages" and change.name == PYTORCH:
        text = f"PyTorch {change.before} → {change.after}. Install the engine in a new environment."
        met, breaks = everyone, False
    elif change.kind == DEFAULT and change.section == "flags":
        text = f"The default of {change.python_name} was {change.before} and is {change.after}.{_keep(change)}"
        met, breaks = tuple(each.test for each in tests if not _is_named(change, each)), False
    elif change.kind == GONE:
        instead = f"Write {change.instead}." if change.instead else "No replacement is known: leave it out."
        text, met, breaks = f"The {WORDS[change.section]} {change.name} is gone. {instead}", users, True
    else:
        text = (f"The {WORDS[change.section]} {change.name} has changed: {change.before} before, {change.after} now. "
                "Look at the values in these tests.")
        met, breaks = () if change.kind == NEW or change.before == ABSENT else users, False
    if met:
        yield Touch(change, met, text, len(met) == len(everyone), breaks)


def _keep(change: Change) -> str:
    """How a spec keeps the older default; "" for an absent default and a key of a configuration."""
    if change.before in (ABSENT, "{…}") or "." in change.name:
        return ""
    return f" Write {change.python_name}={change.before} to keep the older one."


def _is_named(change: Change, uses: Uses) -> bool:
    if change.section == "flags":
        names = set(change.python_name.split("."))
        by_option = change.name in uses.words and change.name.startswith("--")
        return (names <= uses.flags or by_option) and (
            change.kind != VALUES or bool(set(change.before.split(", ")) & uses.words))
    if change.section == "metrics":
        wanted = change.name.replace(".", "_")
        return any(ON_A_PAGE.sub("", word) in (wanted, ON_A_PAGE.sub("", wanted)) for word in uses.words)
    if change.section == "routes":
        return change.name.partition(" ")[2] in uses.words
    return change.section == "variables" and change.name in uses.words | uses.flags


def listed(others: Sequence[Change]) -> Iterator[str]:
    """Lines of a list by section and kind, with a title before each group."""
    for title, lines in grouped(others):
        yield f"  {len(lines)} {title}"
        yield from (f"      {line}" for line in lines)


def grouped(others: Sequence[Change]) -> Iterator[tuple[str, list[str]]]:
    """Title → names with their values, in the order of the sections."""
    for section, word in WORDS.items():
        for kind, title in ((GONE, f"{word}s that are gone"), (NEW, f"new {word}s"),
                            (DEFAULT, f"{word}s with another default"), (VALUES, f"{word}s that changed")):
            lines = [_line(change) for change in others if change.section == section and change.kind == kind]
            if lines:
                yield title, lines


def _line(change: Change) -> str:
    if change.kind == GONE:
        return f"{change.name} → {change.instead}" if change.instead else change.name
    if change.kind == NEW:
        return f"{change.name} ({change.after})" if change.after != ABSENT else change.name
    return f"{change.name}: {change.before} → {change.after}"
