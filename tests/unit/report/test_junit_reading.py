"""What JUnit keeps of a run is enough to compare it."""

from dataclasses import replace
from math import inf
from xml.etree import ElementTree

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.junit import read_release
from pytest_llmperf.report.properties import properties
from pytest_llmperf.results.cause import Cause
from pytest_llmperf.results.reader import read_run
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.stats.prior import Margins

TEST = "tests/test_a.py::test_x[h200]"
CHECK = CheckResult("baseline ttft_p50", Verdict.FAIL, "ttft_p50", Unit.CHANGE, Comparison.AT_MOST, 0.15, 0.2,
                    Interval(0.17, 0.23, 0.95), Cause.STATED, {"runs": 3, "text": "slow"})


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


def test_junit_contains_everything_of_run_folder_except_requests(tmp_path, junit, measurement_of, measurement):
    measurement = replace(measurement, margins={"tpot_mean": Margins(0.06, 0.15)})
    named = properties(TEST, [measurement], [CHECK])
    (read,) = read_release(junit([*named, ("llmperf_verdict", "FAIL")], ("failure", "x")))
    write_test(tmp_path / "run", TEST, [measurement], [CHECK])
    (kept,) = read_run(tmp_path / "run")
    assert (read.test, read.checks, read.verdict) == (kept.test, kept.checks, kept.verdict)
    (one,), (other,) = read.measurements, kept.measurements
    assert (one.engine, one.workload, one.conditions, one.primaries) == (
        other.engine, other.workload, other.conditions, other.primaries)  # fmt: skip
    assert one.margins == other.margins == measurement.margins
    assert [run.seed for run in one.runs] == [run.seed for run in other.runs]
    assert one.value_with_failures("ttft_p50") == pytest.approx(other.value_with_failures("ttft_p50"))


def test_junit_values_count_failed_requests_as_infinite(tmp_path, junit, measurement):
    """One of the two requests of the second run failed."""
    write_test(tmp_path / "run", TEST, [measurement], [CHECK])
    (kept,), (read,) = read_run(tmp_path / "run"), read_release(junit(properties(TEST, [measurement], [CHECK])))
    for test in (kept, read):
        (one,) = test.measurements
        assert one.values_with_failures("ttft_p50") == (50.0, inf)
        assert one.values("ttft_p50") == (50.0, 50.0)
        assert (
            one.value_with_failures("ttft_p50"),
            one.value_with_failures("error_rate"),
            one.value_with_failures("kv_usage_peak"),
        ) == (inf, 0.25, None)


@pytest.mark.parametrize("verdicts", [("FAIL", "PASS"), ("PASS", "FAIL"), ("FAIL", "FAIL")])
def test_worst_verdict_of_test_copies_is_read_from_junit(junit, measurement, verdicts):
    roots = []
    for verdict in verdicts:
        named = properties(TEST, [measurement], [replace(CHECK, verdict=Verdict[verdict])])
        roots.append(ElementTree.parse(path := junit([*named, ("llmperf_verdict", verdict)])).getroot())
    roots[0].extend(roots[1])
    ElementTree.ElementTree(roots[0]).write(path)
    (read,) = read_release(path)
    assert read.verdict is Verdict.FAIL


def test_runs_of_one_seed_are_all_kept(junit, measurement):
    again = replace(measurement, runs=measurement.runs * 2, metrics=measurement.metrics * 2)
    named = properties(TEST, [again], [])
    (read,) = read_release(junit(named))
    assert len(dict(named)) == len(named)
    assert [run.seed for run in read.measurements[0].runs] == [run.seed for run in again.runs]


def test_files_that_had_the_seed_in_the_name_are_read(junit):
    values = [("llmperf.1.run7", '{"ttft_p50": 1.0}'), ("llmperf.1.run-3", '{"ttft_p50": 2.0}')]
    (read,) = read_release(junit([("llmperf.test", TEST), *values]))
    assert [(run.seed, run.metrics.all()) for run in read.measurements[0].runs] == [
        (7, {"ttft_p50": 1.0}), (-3, {"ttft_p50": 2.0})]  # fmt: skip


def test_records_of_a_run_in_junit_are_a_usage_error(junit, measurement):
    (read,) = read_release(junit(properties(TEST, [measurement], [])))
    with pytest.raises(UsageError, match=r"vllm\('m'\), seed 0: what each request did was not kept"):
        read.measurements[0].to_pandas()


def test_baseline_change_is_a_separate_junit_property(measurement):
    stored = dict(properties(TEST, [measurement], [CHECK]))
    assert stored["llmperf.baseline.ttft_p50"] == "+20.0 % (90 % CI +17.0 % … +23.0 %)"


@pytest.mark.parametrize("margins", ["[0.1]", "[0.2, 0.1]", '["a", "b"]', "0.1"])
def test_malformed_margins_in_junit_are_refused(junit, margins):
    path = junit([("llmperf.test", TEST), ("llmperf.1.margins", f'{{"tpot_mean": {margins}}}')])
    with pytest.raises(BaselineError, match="tpot_mean"):
        read_release(path)


@pytest.mark.parametrize(
    ("more", "outcome", "verdict"),
    [
        ([], [], Verdict.REPORTED),
        ([("llmperf_verdict", "ERROR")], [("error", "it died")], Verdict.ERROR),
        ([("llmperf_verdict", "USAGE")], [("failure", "typo")], Verdict.ERROR),
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
    (read,) = read_release(junit([*named, ("llmperf_verdict", verdict)], ("error", "failed on teardown")))
    assert read.verdict is Verdict[verdict]


def test_an_error_in_a_teardown_is_one_whatever_was_checked(junit, measurement):
    named = properties(TEST, [measurement], [replace(CHECK, verdict=Verdict.PASS)])
    both = [("llmperf_verdict", "PASS"), ("llmperf_verdict", "ERROR")]
    (read,) = read_release(junit([*named, *both], ("error", "the server died")))
    assert (read.verdict, read.reason) == (Verdict.ERROR, "the server died")


@pytest.mark.parametrize(("more", "outcome", "reason"), [
    ([], ("failure", "assert 1 == 2\n +  where"), "failed: assert 1 == 2"), ([], ("skipped", ""), "skipped"),
    ([], ("skipped", "no time"), "skipped: no time"),
    ([("llmperf_verdict", "USAGE")], ("failure", "Failed: llmperf USAGE: no such metric"), "USAGE: no such metric"),
    ([("llmperf_verdict", "ERROR")], ("error", "Failed: llmperf ERROR: it died"), "it died"),
])
def test_aborted_test_has_outcome_as_reason(junit, measurement, more, outcome, reason):
    (read,) = read_release(junit([*properties(TEST, [measurement], []), *more], outcome))
    assert (read.verdict, read.complete, read.reason) == (Verdict.ERROR, False, reason)


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
        cases.append(ElementTree.parse(path := junit([*named, ("llmperf_verdict", verdict)])).find(".//testcase"))
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


def test_edited_junit_property_is_refused(junit):
    with pytest.raises(BaselineError, match=r"test_x\[h200\]: .*Write the file anew"):
        read_release(junit([("llmperf.test", TEST), ("llmperf.1.run0", '{"ttft_p50": ')]))
