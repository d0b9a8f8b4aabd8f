"""Rows on disk, and the page that is made of them."""

import pytest

from pytest_llmperf.calibration.alternative_rules import FIXED
from pytest_llmperf.calibration.experiments import A_A, experiments
from pytest_llmperf.calibration.journal import RowJournal
from pytest_llmperf.calibration.limits import SETTINGS
from pytest_llmperf.calibration.page import Origin, limit_name, page, share
from pytest_llmperf.calibration.row import CalibrationRow
from pytest_llmperf.errors import UsageError

ABOUT = {"calibration": "h200"}
FAIL = ("t", "baseline tpot_mean", "FAIL", "tpot_mean +5 %: tpot_mean changed 10 → 10.5 ms (+5 %) against its baseline")


def row(number=1, experiment=A_A, bad=(), **more):
    fields = {"verdicts": {"PASS": 3}, "tpot": {"PASS": 1}, "open": (), "runs": 3, "rivals": {}, "seen": 1}
    return CalibrationRow(experiment, number, bad=bad, **(fields | more))


def test_an_interrupted_journal_goes_on(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    with RowJournal(path, ABOUT) as journal:
        journal.add(row(1, bad=[list(FAIL)]))
    with path.open("a") as file:
        file.write('{"experiment": "A/A", "num')  # killed while writing
    with RowJournal(path, ABOUT) as journal:
        assert list(journal.rows) == [(A_A, 1)]
        assert journal.rows[A_A, 1].says("tpot_mean changed")
        journal.add(row(2))
    with RowJournal(path, ABOUT) as journal:
        assert list(journal.rows) == [(A_A, 1), (A_A, 2)]


def test_second_writer_of_journal_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowJournal(path, ABOUT) as journal:
        with pytest.raises(UsageError, match="another calibration writes this file now"):
            RowJournal(path, ABOUT)
        journal.add(row(1))
    with RowJournal(path, ABOUT) as journal:
        assert list(journal.rows) == [(A_A, 1)]


@pytest.mark.parametrize("content", ['{"calibration": "l4"}\n', "# A page\n"])
def test_journal_of_other_calibration_is_refused(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError):
        RowJournal(path, ABOUT)
    assert path.read_text() == content


@pytest.mark.parametrize(("count", "of", "text"), [
    (80, 10_000, "80 of 10000: 0.8 % (0.635 %–0.995 %)"),  # the most that 1 % allows
    (81, 10_000, "81 of 10000: 0.81 % (0.644 %–1.01 %)"),
    (0, 200, "0 of 200: 0 % (0 %–1.83 %)"),
    (0, 0, "–"),
])
def test_shown_intervals_are_clopper_pearson_intervals(count, of, text):
    assert share(count, of) == text


def test_calibration_page_counts_alarms_detections_and_limits():
    plan = experiments(suite_runs=20, faults=2)
    slow = next(experiment.name for experiment in plan if experiment.slowdown)
    rows = [
        row(1), row(2, bad=[("t", "x", "ERROR", "y")], verdicts={"ERROR": 1}), row(3, open=[("t", "z")]),
        row(4, rivals={FIXED: ["t ttft_p50"]}),
        row(1, slow, bad=[FAIL]), row(2, slow, bad=[FAIL], runs=8), row(3, slow), row(4, slow, open=[("t", "z")]),
        row(1, "leak", bad=[FAIL]), row(2, "leak", bad=[("t", "i", "ERROR", "blocks are still held")]),
        row(100, limit_name(SETTINGS[0]), verdicts={"PASS": 4, "FAIL": 1, "INCONCLUSIVE": 95}, tpot={}),
    ]
    origin = Origin("h200", "llmperf …", "abc", "2026-11-21", "here", 13, (), ("s.py::test_disk",))
    lines = page(origin, plan, rows).splitlines()

    def cells(start, title):
        inside = lines[lines.index(f"## {title}"):]
        table_line = next(line for line in inside if line.startswith(f"| {start}"))
        return [cell.split(":")[0] for cell in table_line.strip("| ").split(" | ")[1:]]

    assert cells(A_A + " |", "Nothing changed") == ["1 of 4", "1", "1 of 4", "0 of 4", "0"]
    assert cells(slow, "Slowdowns") == ["1 of 4", "2 of 4", "1 of 4", "1 of 4"]
    assert cells("`leak`", "Faults of mechanisms")[1:3] == ["2 of 2", "1 of 2"]
    assert cells(limit_name(SETTINGS[0]), "SLOs at their exact limit") == ["4 of 100", "1 of 100"]
    assert cells("pytest-llmperf", "The same data judged by other rules")[3] == "2 of 4"
    assert cells("pytest-llmperf", "The same data judged by other rules")[0] == "1 of 4"
    assert cells(FIXED, "The same data judged by other rules")[0] == "1 of 4"


def test_calibration_page_names_selected_tests_and_omits_missing_experiments():
    plan = experiments(suite_runs=20, faults=0)
    origin = Origin("h200", "llmperf …", "abc", "2026-11-21", "here", 13, ("s.py::test_a", "s.py::test_b"), ())
    text = page(origin, [experiment for experiment in plan if experiment.suite_runs], [row(1)])
    assert "every check of 2 tests on an emulated h200 (`s.py::test_a`, `s.py::test_b`)" in text
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## Nothing changed", "## The same data judged by other rules"]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="Name another file with --out"):
        RowJournal(tmp_path / "file" / "rows", {})
