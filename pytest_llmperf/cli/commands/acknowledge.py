"""Acknowledge a regression: the test stays visible and does not gate until a day.

    llmperf acknowledge test_answers_come_in_time itl_p50 --reason "vLLM 0.33 samples on the CPU" --until 2026-12-31

It writes acknowledged.json beside the baselines, for review in git. The newest run must show that METRIC fails; its
hardware kind is part of the entry. From the day after --until on the test is red again.
"""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime

from pytest_llmperf.baseline.acknowledged import Acknowledged, add_acknowledged
from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import RUN_HELP, named_run, newest_run
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import UsageError, on_one_line
from pytest_llmperf.results.conditions import kind_of
from pytest_llmperf.results.reader import choose, read_run
from pytest_llmperf.results.sentences import estimate_text

ARGUMENTS = {
    "test": {"metavar": "TEST", "help": "a part of a test's id"},
    "metric": {"metavar": "METRIC", "help": "the metric that fails, as `llmperf show RUN TEST` names it"},
    "--reason": {"required": True, "help": "for reviewers and for every report"},
    "--until": {"required": True, "metavar": "DATE", "help": "last day without a gate, such as 2026-12-31"},
    "--run": {"dest": "run_named", "metavar": "RUN", "help": f"{RUN_HELP} (the default)"},
}


def run(arguments: argparse.Namespace) -> int:
    until = _day(arguments.until, datetime.now(UTC).date())
    reason = on_one_line(arguments.reason)
    if not reason:
        raise UsageError("--reason is empty. Say why the regression may stay, and who looks after it.")
    root = project_root()
    folder = newest_run() if arguments.run_named is None else named_run(arguments.run_named)
    tests = choose(read_run(folder), arguments.test, folder)
    if len(tests) > 1:
        raise UsageError(f"{arguments.test!r} may be each of: {', '.join(test.test for test in tests)}. Write more of "
                         "it.")
    (test,) = tests
    failing = [check for check in test.checks if check.verdict.value == "FAIL"]
    chosen = [check for check in failing if check.metric == arguments.metric]
    if not chosen:
        there = ", ".join(dict.fromkeys(check.metric or check.subject for check in failing)) or "no metric"
        raise UsageError(f"{folder.name}: {arguments.metric} does not fail in {test.test}; {there} fails there. "
                         f"Name a metric that fails: llmperf show {folder.name} {test.test}")
    kind = next((kind_of(measurement.conditions) for measurement in test.measurements), "unknown")
    entry = Acknowledged(test.test, arguments.metric, kind, until.isoformat(), reason,
                         estimate_text(chosen[0]))
    path = add_acknowledged(root / read_settings(root).baselines_dir, entry)
    say(f"{path}: {entry.metric} of {entry.test} on {kind} ({entry.seen}) does not gate until {entry.until}.")
    return 0


def _day(text: str, today: date) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--until {text}: write a day as YYYY-MM-DD.") from error
    if day < today:
        raise UsageError(f"--until {text}: this day is over. Name a day from {today.isoformat()} on.")
    return day
