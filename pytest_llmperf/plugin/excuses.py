"""Tests that are red and do not gate: quarantined tests and acknowledged regressions. Both run, and both are shown."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from functools import cached_property

import pytest

from pytest_llmperf.baseline.acknowledged import Acknowledged, excuse_for, read_acknowledged
from pytest_llmperf.errors import LlmperfError, SpecError, on_one_line
from pytest_llmperf.plugin.identity import test_id
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.plugin.verdicts import OURS, UNKNOWN
from pytest_llmperf.results.check_json import check_from
from pytest_llmperf.results.conditions import kind_of
from pytest_llmperf.results.ended_test import ExecutionEnding, excused
from pytest_llmperf.results.strict_json import parse

QUARANTINE = '@pytest.mark.quarantine(reason="flaky since the driver update", until="2026-12-31")'
OWNER = '@pytest.mark.owner("team-serving")'
EXPIRED = "The quarantine of this test has expired on {}: {}. Repair the test and drop the marker, or name a later day."


class Excuses:
    """One per process.

    Args:
        config: pytest's.
        today: decides which excuses hold.
    """

    def __init__(self, config: pytest.Config, today: date | None = None) -> None:
        self._config = config
        self._today = today or datetime.now(UTC).date()

    @cached_property
    def _acknowledged(self) -> list[Acknowledged]:
        return read_acknowledged(self._config.rootpath / self._config.stash[STATE].settings.baselines_dir)

    def check(self, item: pytest.Item) -> None:
        """Refuse a wrong marker, and a wrong file of acknowledged regressions, before the test measures.

        Raises:
            LlmperfError: a marker or the file is wrong.
        """
        owner_of(item)
        if quarantine_of(item) is None:
            _ = self._acknowledged

    def apply(self, item: pytest.Item, report: pytest.TestReport, ending: ExecutionEnding) -> tuple[str, str]:
        """Owner and excuse of a test, as `EndedTest` has them. Changes the report: a red phase with an excuse does not
        fail, and a test whose quarantine has expired fails where it passes, or skips itself.
        """
        try:
            owner, excuse = owner_of(item), self._excuse(item, report, ending)
        except LlmperfError:  # `check` has refused the test
            return "", ""
        if excused(excuse):
            report.outcome = "skipped"
            report.wasxfail = excuse
        return owner, excuse or ending.excuse

    def _excuse(self, item: pytest.Item, report: pytest.TestReport, ending: ExecutionEnding) -> str:
        quarantine = quarantine_of(item)
        if quarantine is None:
            ours = report.failed and ending.word == "FAIL" and report.longreprtext.startswith(OURS)
            return self._for_checks(item, ending) if ours else ""
        reason, until = quarantine
        if report.failed or (report.skipped and ending.verdict in UNKNOWN):
            return f"{'was quarantined' if self._today > until else 'QUARANTINED'} until {until}: {reason}"
        skips_itself = report.skipped and item.stash.get(RUNS_HERE, False)
        if self._today > until and (skips_itself or report.when == "call"):
            report.outcome, report.longrepr = "failed", EXPIRED.format(until, reason)
            vars(report).pop("wasxfail", None)
        return ""

    def _for_checks(self, item: pytest.Item, ending: ExecutionEnding) -> str:
        if not self._acknowledged:
            return ""
        checks = [check_from(parse(text.encode(), item.nodeid)) for text in ending.checks]
        kinds = {kind_of(json.loads(conditions)) for conditions in ending.conditions}
        return excuse_for(self._acknowledged, test_id(item), kinds, checks, self._today)


EXCUSES: pytest.StashKey[Excuses] = pytest.StashKey()
#: Whether hardware and budget of the session allow a test.
RUNS_HERE: pytest.StashKey[bool] = pytest.StashKey()


def quarantine_of(item: pytest.Item) -> tuple[str, date] | None:
    """Reason and last day of the quarantine of a test; None without one.

    Raises:
        SpecError: the marker is wrong.
    """
    marker = item.get_closest_marker("quarantine")
    if marker is None:
        return None
    try:
        reason, until = _reason_and_day(*marker.args, **marker.kwargs)
        if reason:
            return reason, date.fromisoformat(until)
    except (TypeError, ValueError):
        pass
    raise SpecError(f"{item.nodeid}: write {QUARANTINE}.")


def _reason_and_day(reason: str, until: str) -> tuple[str, str]:
    return _line(reason), until


def _line(text: object) -> str:
    """A text of a marker on one line, without control characters; "" for another type."""
    return on_one_line(text) if isinstance(text, str) else ""


def owner_of(item: pytest.Item) -> str:
    """The owner of a test; "" without a marker.

    Raises:
        SpecError: the marker is wrong.
    """
    marker = item.get_closest_marker("owner")
    if marker is None:
        return ""
    owner = _line(marker.args[0]) if len(marker.args) == 1 and not marker.kwargs else ""
    if not owner:
        raise SpecError(f"{item.nodeid}: write {OWNER}.")
    return owner
