"""What JUnit keeps of a run: flat numbers for dashboards, and the way to the run file."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.errors import UsageError
from pytest_llmperf.metrics.registry import all_metrics
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.junit import outcome_properties, properties, read_release
from pytest_llmperf.results.check import Stated
from pytest_llmperf.results.ended_test import EndedTest
from pytest_llmperf.results.reader import read_run
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval

TEST = "tests/test_a.py::test_x[h200]"
CHECK = CheckResult("baseline ttft_p50", Verdict.FAIL, "ttft_p50", Unit.CHANGE, Comparison.AT_MOST, 0.15, 0.2,
                    Interval(0.17, 0.23, 0.95), Stated("slow"), {"runs": 3})


@pytest.fixture
def junit(tmp_path):
    def write(named, *outcome):
        root = ElementTree.Element("testsuites")
        case = ElementTree.SubElement(ElementTree.SubElement(root, "testsuite"), "testcase", name="test_x")
        held = ElementTree.SubElement(case, "properties")
        for name, value in named:
            ElementTree.SubElement(held, "property", name=name, value=value)
        for tag, message in outcome:
            ElementTree.SubElement(case, tag, message=message)
        ElementTree.ElementTree(root).write(tmp_path / "junit.xml")
        return tmp_path / "junit.xml"

    return write


@pytest.fixture
def named(tmp_path, measurement):
    """Properties of a test whose run file lies in a run folder."""

    def write(*checks, run="20260102T000000Z-abcdef"):
        path = write_test(tmp_path / "runs" / run, TEST, [measurement], checks)
        return [*properties(TEST, [measurement], checks), ("llmperf.run_file", str(path))]

    return write


def test_junit_test_is_read_from_named_run_file(junit, named, tmp_path):
    pairs = named(CHECK)
    (read,) = read_release(junit([*pairs, ("llmperf.verdict", "FAIL")], ("failure", "x")))
    (test,) = read_run(tmp_path / "runs" / "20260102T000000Z-abcdef")
    assert replace(read, ended="") == test


def test_run_folder_beside_junit_file_replaces_missing_named_path(junit, named):
    pairs = dict(named(CHECK))
    path = Path(pairs.pop("llmperf.run_file"))
    elsewhere = Path("/runner/work/.llmperf/runs", *path.parts[-3:])
    read = read_release(junit([*pairs.items(), ("llmperf.run_file", str(elsewhere)), ("llmperf.verdict", "FAIL")]))
    assert len(read[0].measurements) == 1


@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "INCONCLUSIVE"])
def test_junit_test_without_run_file_keeps_verdict_and_deciding_check(junit, measurement, verdict):
    ended = EndedTest(TEST, verdict, (replace(CHECK, verdict=Verdict[verdict]),))
    named = [*outcome_properties(ended).items(), ("llmperf.run_file", "/gone/runs/x/tests/t.json")]
    (read,) = read_release(junit(named))
    assert (read.verdict.value, read.measurements) == (verdict, ())
    assert "baseline ttft_p50" in read.checks[0].subject


def test_junit_properties_are_flat_and_named_with_unit(measurement):
    check = replace(CHECK, before=50.0, after=60.0)
    pairs = properties(TEST, [measurement], [check])
    named = dict(pairs)
    assert len(named) == len(pairs)
    assert [named[f"llmperf.{name}"] for name in (
        "baseline.ttft_p50_ms", "change.ttft_p50_pct", "change_low.ttft_p50_pct", "change_high.ttft_p50_pct",
    )] == ["50", "20", "17", "23"]
    assert named["llmperf.metric.error_rate"] == "0.25"
    assert not any(value.startswith(("{", "[")) for value in named.values())


def test_ratio_of_claim_is_a_number_in_junit(measurement):
    claim = CheckResult("ttft_p50(b) / ttft_p50(a) >= 3", Verdict.PASS, "ttft_p50(b) / ttft_p50(a)", Unit.RATIO,
                        Comparison.AT_LEAST, 3.0, 3.204)
    assert dict(properties(TEST, [measurement], [claim]))["llmperf.ratio.ttft_p50"] == "3.204"


def test_properties_of_a_test_with_many_checks_stay_below_2_kb(measurement):
    checks = [replace(CHECK, metric=name, subject=f"baseline {name}", before=50.0, after=60.0)
              for name in all_metrics()]
    claims = [replace(CHECK, metric=f"{name}(b) / {name}(a)", subject="x" * 500) for name in all_metrics()]
    wordy = replace(measurement, engine="e" * 5000, workload="w" * 5000)
    pairs = properties(TEST, [wordy] * 5, [*checks, *claims])
    xml = "".join(f'<property name="{name}" value="{value}" />' for name, value in pairs)
    assert len(xml.encode()) <= 1450  # 2 kB with outcome and run file, which the plugin adds


@pytest.mark.parametrize("verdicts", [("FAIL", "PASS"), ("PASS", "FAIL"), ("FAIL", "FAIL")])
def test_worst_verdict_of_test_copies_is_read_from_junit(junit, measurement, verdicts):
    roots = []
    for verdict in verdicts:
        named = properties(TEST, [measurement], [replace(CHECK, verdict=Verdict[verdict])])
        roots.append(ElementTree.parse(path := junit([*named, ("llmperf.verdict", verdict)])).getroot())
    roots[0].extend(roots[1])
    ElementTree.ElementTree(roots[0]).write(path)
    (read,) = read_release(path)
    assert read.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("more", "outcome", "verdict"),
    [
        ([], [], Verdict.REPORTED),
        ([("llmperf.verdict", "ERROR")], [("error", "it died")], Verdict.ERROR),
        ([("llmperf.verdict", "USAGE")], [("failure", "typo")], Verdict.ERROR),
        ([], [("failure", "assert 1 == 2")], Verdict.ERROR),
        ([], [("error", "teardown failed")], Verdict.ERROR),
    ],
)
def test_junit_verdict_of_test_without_checks_follows_outcome(junit, more, outcome, verdict):
    (read,) = read_release(junit([("llmperf.test", TEST), *more], *outcome))
    assert read.verdict is verdict


@pytest.mark.parametrize("verdict", ["PASS", "FAIL"])
def test_a_teardown_that_fails_leaves_the_verdict(junit, measurement, verdict):
    """Also a FAIL that was found in a teardown, which is no `<failure>` to pytest."""
    named = properties(TEST, [measurement], [replace(CHECK, verdict=Verdict[verdict])])
    (read,) = read_release(junit([*named, ("llmperf.verdict", verdict)], ("error", "failed on teardown")))
    assert read.verdict is Verdict[verdict]


def test_an_error_in_a_teardown_is_one_whatever_was_checked(junit, measurement):
    named = properties(TEST, [measurement], [replace(CHECK, verdict=Verdict.PASS)])
    both = [("llmperf.verdict", "PASS"), ("llmperf.verdict", "ERROR")]
    (read,) = read_release(junit([*named, *both], ("error", "the server died")))
    assert (read.verdict, read.reason) == (Verdict.ERROR, "the server died")


@pytest.mark.parametrize(("more", "element", "outcome", "reason"), [
    ([], ("failure", "assert 1 == 2\n +  where"), "FAILED", "assert 1 == 2"), ([], ("skipped", ""), "ERROR", "skipped"),
    ([], ("skipped", "no time"), "ERROR", "skipped: no time"),
    ([("llmperf.verdict", "USAGE")], ("failure", "Failed: llmperf USAGE: no such metric"), "USAGE", "no such metric"),
    ([("llmperf.verdict", "ERROR")], ("error", "Failed: llmperf ERROR: it died"), "ERROR", "it died"),
])
def test_aborted_test_has_outcome_and_reason(junit, named, more, element, outcome, reason):
    (read,) = read_release(junit([*named(), *more], element))
    assert (read.verdict, read.complete, read.outcome, read.reason) == (Verdict.ERROR, False, outcome, reason)


def test_skipped_before_measurement_is_absent_from_release(junit):
    with pytest.raises(UsageError, match="no test of this JUnit file was measured"):
        read_release(junit([("llmperf.test", TEST)], ("skipped", "no time")))


@pytest.mark.parametrize("verdicts", [("FAIL", "PASS"), ("PASS", "FAIL")])
@pytest.mark.parametrize("names", [("test_x", "test_x"), ("test_x[1-2]", "test_x[2-2]")], ids=["again", "copies"])
def test_rerun_counts_last_verdict_and_copies_count_worst_verdict(junit, measurement, verdicts, names):
    """pytest writes an entry for each execution."""
    cases = []
    for verdict, name in zip(verdicts, names, strict=True):
        named = properties(TEST, [measurement], [replace(CHECK, verdict=Verdict[verdict])])
        cases.append(ElementTree.parse(path := junit([*named, ("llmperf.verdict", verdict)])).find(".//testcase"))
        cases[-1].set("name", name)
    root = ElementTree.Element("testsuites")
    ElementTree.SubElement(root, "testsuite").extend(cases)
    ElementTree.ElementTree(root).write(path)
    (read,) = read_release(path)
    assert read.verdict.value == (verdicts[1] if names[0] == names[1] else "FAIL")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('<?xml version="1.0" encoding="foo"?><a/>', "neither a run folder nor a JUnit file"),
        ("<testsuites>", "neither a run folder nor a JUnit file"),
        ("\x00\x01", "neither a run folder nor a JUnit file"),
        ("<testsuites><testcase name='a'/></testsuites>", "no test of this JUnit file was measured by llmperf"),
    ],
)
def test_file_without_measured_tests_is_refused(tmp_path, text, complaint):
    (tmp_path / "x.xml").write_text(text)
    with pytest.raises(UsageError, match=complaint):
        read_release(tmp_path / "x.xml")
