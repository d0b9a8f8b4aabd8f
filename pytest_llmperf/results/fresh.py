"""What a session measured, as its run files say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_llmperf.errors import BaselineError
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.strict_json import Node

FAILED = (Verdict.FAIL.value, "failed")  # an ERROR is no evidence, and its runs do not count
SCHEMA = 1
REPAIR = "It is no run file of this version; run the test again."


@dataclass(frozen=True, slots=True)
class FreshRun:
    """One run.

    Args:
        seed, start: added to the workload's seed; which server start of the session.
        metrics: every metric by name, as a comparison takes it: failed requests are answers without an end.
        contended: who else used the hardware, where somebody did.
    """

    seed: int
    start: int
    metrics: Mapping[str, float | None]
    contended: str | None = None


@dataclass(frozen=True, slots=True)
class FreshMeasurement:
    """One that is to be compared with a baseline, under that name; else as `results.measurement.Measurement`.

    Args:
        margins, negligible: tolerated and negligible changes as shares, of metrics that do not take their default.
    """

    name: str
    primaries: tuple[str, ...]
    conditions: Mapping[str, str]
    complete: bool
    runs: tuple[FreshRun, ...]
    margins: Mapping[str, float] = field(default_factory=dict)
    negligible: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """The part of a `CheckResult` that an update looks at."""

    subject: str
    metric: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class FreshTest:
    """One test of the session.

    Args:
        test: its id.
        complete: whether it reached its end.
        error: what ended it before.
        measurements: those with a baseline.
        checks: all of them.
        failed_first: how earlier executions of the test ended that failed and whose runs count here.
    """

    test: str
    complete: bool
    error: str | None
    measurements: tuple[FreshMeasurement, ...]
    checks: tuple[Check, ...]
    failed_first: tuple[str, ...] = ()


def fresh_test(content: Mapping[str, object], origin: str) -> FreshTest:
    """Read the content of a run file (`results.writer`).

    Args:
        origin: the file, for messages.

    Raises:
        BaselineError: it is none.
    """
    schema = content.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise BaselineError(f"{origin}: schema {schema}, and this pytest-llmperf reads {SCHEMA}. Install a newer one.")
    fields = _fields(Node(dict(content), origin, repair=REPAIR), "test", "complete", "error", "measurements", "checks")
    measured = [_fields(node, "baseline") for node in fields["measurements"].items()]
    return FreshTest(
        test=fields["test"].text(),
        complete=fields["complete"].flag(),
        error=fields["error"].text_or_none(),
        measurements=tuple(_measurement(node) for node in measured if node["baseline"].value is not None),
        checks=tuple(_check(node) for node in fields["checks"].items()),
        failed_first=tuple(_failed(fields["earlier"])) if "earlier" in fields else (),
    )


def _measurement(fields: dict[str, Node]) -> FreshMeasurement:
    return FreshMeasurement(
        name=fields["baseline"].text(),
        primaries=tuple(node.text() for node in fields["primaries"].items()),
        conditions=fields["conditions"].texts(),
        complete=fields["complete"].flag(),
        runs=tuple(_run(node) for node in fields["runs"].items()),
        margins=shares(fields, "margins"),
        negligible=shares(fields, "negligible"),
    )


def numbers(fields: Mapping[str, Node], name: str) -> dict[str, float | None]:
    """A table of numbers; empty where there is none."""
    table = fields[name].table() if name in fields else {}
    return {key: value.number_or_none() for key, value in table.items()}


def shares(fields: Mapping[str, Node], name: str) -> dict[str, float]:
    """A table of shares by metric; empty where there is none."""
    return {metric: value for metric, value in numbers(fields, name).items() if value is not None}


def _run(node: Node) -> FreshRun:
    fields = _fields(node, "seed", "start_id", "metrics")
    return FreshRun(
        seed=fields["seed"].integer(),
        start=fields["start_id"].integer(),
        metrics=numbers(fields, "metrics") | numbers(fields, "judged"),
        contended=fields["contended"].text_or_none() if "contended" in fields else None,
    )


def _failed(earlier: Node) -> Iterator[str]:
    for one in earlier.items():
        execution_end = _fields(one, "ended")["ended"].text_or_none()
        if execution_end in FAILED:
            yield execution_end


def _check(node: Node) -> Check:
    fields = _fields(node, "subject", "metric", "verdict")
    verdict = fields["verdict"].text()
    if verdict not in Verdict.__members__:
        fields["verdict"].refuse(f"{verdict!r} is no verdict")
    return Check(fields["subject"].text(), fields["metric"].text(), Verdict[verdict])


def _fields(node: Node, *required: str) -> dict[str, Node]:
    """An object with at least these keys."""
    table = node.table()
    return node.fields(required, optional=table)
