"""A run read from the JUnit file that our plugin wrote: tests, verdicts, metrics; no requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from pytest_llmperf.baseline.checked import Node, parse
from pytest_llmperf.errors import UsageError
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.report.kept import KeptMeasurement, KeptRun, KeptTest, check_from, margins_from, read_run
from pytest_llmperf.report.properties import SEED
from pytest_llmperf.stats.prior import Margins

REPAIR = "Write the file anew: pytest --junitxml=FILE."
_RUN = re.compile(r"run(-?\d+)")
Property = tuple[str, str]


def read_release(path: Path) -> tuple[KeptTest, ...]:
    """The tests of a run folder or of a JUnit file; of copies of one test (`--count`) the one that ended worst.

    Raises:
        UsageError: it is neither, or no test of it used llmperf.
        BaselineError: what it holds cannot be believed.
    """
    if not path.is_file():
        return read_run(path)
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError) as error:
        raise UsageError(f"{path}: this is neither a run folder nor a JUnit file: {error}.") from error
    each = [test for case in root.iter("testcase") if (test := _test(case, path)) is not None]
    found = {test.test: test for test in sorted(each, key=lambda test: test.verdict.severity)}
    if not found:
        raise UsageError(f"{path}: no test of this JUnit file was measured by llmperf of this version. {REPAIR}")
    return tuple(found[name] for name in sorted(found))


def _test(case: ElementTree.Element, path: Path) -> KeptTest | None:
    """None for a test that did not use llmperf. A test that was run again counts as it ended."""
    each = [(one.get("name", ""), one.get("value", "")) for one in case.iter("property")]
    named = dict(each)
    test = named.get("llmperf.test")
    if test is None:
        return None
    checks = [value for name, value in each if re.fullmatch(r"llmperf\.result\d+", name)]
    origin, verdict, ended = f"{path}: {test}", named.get("llmperf_verdict"), case.find("error")
    found = KeptTest(
        test=test,
        complete=verdict in Verdict.__members__ or (verdict is None and case.find("failure") is None),
        error=None,
        measurements=tuple(_measurements(each, origin)),
        checks=tuple(check_from(_json(text, origin)) for text in checks),
    )
    if ended is None or found.verdict is Verdict.ERROR:
        return found
    return replace(found, error=ended.get("message", "") or "ERROR")


def _measurements(each: Sequence[Property], origin: str) -> Iterator[KeptMeasurement]:
    numbers = sorted({int(found[1]) for name, _ in each if (found := re.match(r"llmperf\.(\d+)\.", name))})
    for number in numbers:
        prefix = f"llmperf.{number}."
        own = [(name.removeprefix(prefix), value) for name, value in each if name.startswith(prefix)]
        yield _measurement(dict(own), own, origin)


def _measurement(named: Mapping[str, str], own: Sequence[Property], origin: str) -> KeptMeasurement:
    runs = [(int(found[1]), value) for name, value in own if (found := _RUN.fullmatch(name))]
    return KeptMeasurement(
        engine=named.get("engine", "unknown"),
        workload=named.get("workload", "unknown"),
        conditions=_json(named.get("conditions", "{}"), origin).texts(),
        runs=tuple(_run(number, _json(text, origin)) for number, text in runs),
        primaries=tuple(node.text() for node in _json(named.get("primaries", "[]"), origin).items()),
        side=named.get("side", ""),
        margins=dict(_margins(_json(named.get("margins", "{}"), origin))),
    )


def _margins(node: Node) -> Iterator[tuple[str, Margins]]:
    for metric, both in node.table().items():
        limits = [limit for one in both.items() if (limit := one.number_or_none()) is not None]
        if len(limits) != 2:
            both.refuse("two numbers belong here: negligible and tolerated")
        yield metric, margins_from(both, *limits)


def _run(number: int, node: Node) -> KeptRun:
    """Older files have the seed in the property's name instead."""
    known = dict(node.table())
    seed = known.pop(SEED).integer() if SEED in known else number
    return KeptRun(seed, 0, "", {name: value.number_or_none() for name, value in known.items()})


def _json(text: str, origin: str) -> Node:
    return parse(text.encode(), origin, REPAIR)
