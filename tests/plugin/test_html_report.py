"""The HTML report and JUnit of a session, as a user gets them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from junitparser import JUnitXml, Properties

from pytest_llmperf.report.junit import read_release
from pytest_llmperf.report.release import Trend, compare_runs
from pytest_llmperf.results.reader import read_run

pytestmark = pytest.mark.emulated
SUITE = """
import pytest
from junitparser import JUnitXml, Properties
from pytest_llmperf import closed, random_tokens, vllm

TRAFFIC = random_tokens(input=100, output=20, arrivals=closed(2), requests=12)
GOOD = vllm("llama-3.1-8b", max_model_len=8192)

def test_slo(perf):
    perf.check(perf.measure(GOOD, TRAFFIC), "error_rate == 0", "tpot_mean <= 100ms")

@pytest.mark.engine(vllm("llama-3.1-8b", frobnicate=3))
def test_broken(engine, perf):
    perf.measure(engine, TRAFFIC)
"""


def test_report_is_written_to_run_folder_and_named_in_output(run, pytester):
    result, _ = run(SUITE, "--emulate", "h200")
    (path,) = Path(pytester.path, ".llmperf/runs").glob("*/report.html")
    result.stdout.fnmatch_lines([f"llmperf report: {path}"])
    text = path.read_text()
    ground = r"Emulated h200, virtual time\. .*emulated h200: same kind.*\. Nothing here was measured on hardware"
    assert re.search(ground, text)
    assert text.index("test_it.py::test_broken") < text.index("test_it.py::test_slo")
    assert "--frobnicate" in text  # what the server that did not start said


def test_report_states_planted_fault_duration_and_skipped_tests(run, pytester):
    needs_cpu = "\n@pytest.mark.cpu\ndef test_cpu(): pass\n\ndef test_left_out(): pytest.skip('not today')\n"
    run(SUITE + needs_cpu, "--emulate", "h200", "--emulate-fault", "step_time=+5%", "-k", "not broken")
    (folder,) = Path(pytester.path, ".llmperf/runs").iterdir()
    session = json.loads((folder / "session.json").read_text())
    assert session["emulated"] == "emulated h200, virtual time, planted: step_time=+5%"
    assert session["skipped"] == {"needs cpu": 1, "not today": 1}
    assert session["duration_s"] > 0
    text = (folder / "report.html").read_text()
    title = "1 PASS, 1 SKIPPED of 2 · emulated H200 · vLLM "
    for said in (title, "planted: step_time=+5%", "2 skipped", "1: needs cpu"):
        assert said in text


def test_report_option_writes_tests_of_all_workers_to_given_folder(run, pytester):
    run(SUITE, "--emulate", "h200", "-n", "2", "--llmperf-report", "site/perf")
    text = Path(pytester.path, "site/perf/report.html").read_text()
    assert "test_it.py::test_broken" in text
    assert "test_it.py::test_slo" in text
    assert not list(Path(pytester.path, ".llmperf/runs").glob("*/report.html"))


@pytest.mark.thorough
def test_crashed_test_appears_in_report_and_in_release_comparison(run, pytester):
    crash = """
import os, signal

def test_crash(perf, request):
    perf.check(perf.measure(GOOD, TRAFFIC), "error_rate == 0")
    if hasattr(request.config, "workerinput"):  # the environment of a test that an outer worker runs names that one
        os.kill(os.getpid(), signal.SIGKILL)

def test_slo"""
    suite, junit = SUITE.replace("\ndef test_slo", crash), Path(pytester.path, "junit.xml")
    run(suite, "--emulate", "h200", "-k", "test_crash")
    previous = read_release(junit)
    result, _ = run(suite, "--emulate", "h200", "-n", "1", "--llmperf-report", "site", "-k", "test_crash or test_slo")
    result.assert_outcomes(passed=1, failed=1)
    text = Path(pytester.path, "site/report.html").read_text()
    assert text.index("test_it.py::test_crash") < text.index("test_it.py::test_slo")
    assert "The test did not reach its end" in text
    (crashed,) = (each for each in compare_runs(previous, read_release(junit)) if each.test == "test_it.py::test_crash")
    assert crashed.trend is Trend.UNKNOWN
    assert crashed.reason == "ERROR now: worker 'gw0' crashed while running 'test_it.py::test_crash'"


def test_junit_and_the_run_folder_say_the_same(run, pytester):
    run(SUITE, "--emulate", "h200")
    (folder,) = Path(pytester.path, ".llmperf/runs").iterdir()
    tests, read = read_run(folder), read_release(Path(pytester.path, "junit.xml"))
    assert [(test.test, test.verdict) for test in tests] == [(test.test, test.verdict) for test in read]
    assert {test.test.rpartition("::")[2]: test.trend for test in compare_runs(read, tests)} == {
        "test_slo": Trend.STAYED, "test_broken": Trend.UNKNOWN}  # fmt: skip


@pytest.mark.parametrize("place", ["sub", ".."])
def test_regenerated_report_is_identical_in_any_working_folder(run, pytester, place):
    compared = 'tpot_mean <= 100ms")\n    perf.compare_with_baseline(perf.measurements[0])'
    suite = SUITE.replace('tpot_mean <= 100ms")', compared)
    run(suite, "--emulate", "h200", "-k", "test_slo", "--update-baselines-new")
    (path,) = Path(pytester.path, ".llmperf/runs").glob("*/report.html")
    command = [sys.executable, "-m", "pytest_llmperf", "report", str(path.parent)]
    Path(pytester.path, "sub").mkdir()
    subprocess.run(command, check=True, cwd=pytester.path)
    text = path.read_text()
    subprocess.run(command, check=True, cwd=Path(pytester.path, place))
    assert path.read_text() == text


def test_requests_are_kept_and_answers_are_not(run, pytester):
    run(SUITE, "--emulate", "h200", "-k", "test_slo")
    (folder,) = Path(pytester.path, ".llmperf/runs").iterdir()
    (test,) = read_run(folder)
    assert [len(run.records) for run in test.measurements[0].runs] == [12, 12, 12]
    assert test.measurements[0].runs[0].requests.stat().st_size < 10_000
    (command,) = folder.glob("servers/*/command.txt")
    assert "--max-model-len 8192" in command.read_text()


@pytest.mark.parametrize("arguments", [(), ("--llmperf-report", "site")])
def test_session_without_measurements_writes_no_report(run, pytester, arguments):
    result, _ = run("def test_plain(): pass", *arguments)
    assert result.ret == 0
    assert not list(Path(pytester.path).rglob("report.html"))
    assert ("llmperf no report in site: nothing was measured" in result.outlines) is bool(arguments)


def test_a_report_that_cannot_be_written_changes_no_verdict(run, pytester):
    Path(pytester.path, "file").write_text("")
    result, _ = run(SUITE, "--emulate", "h200", "-k", "test_slo", "--llmperf-report", "file/x")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["llmperf no report: *file/x*"])


def test_junit_stays_xml_whatever_a_server_logs(run):
    text = r"""
from pytest_llmperf.errors import Evidence, ServerDied

def test_it(perf):
    lines = ("]]> <b> & \x00 \x1b[31m \ud800 \uffff \U0001f600", "\x85\u2028")
    raise ServerDied("It died: ]]> \x00 \ud800.", Evidence("vllm serve", "signal 9", 3.0, lines))
"""
    result, junit = run(text)  # parsed by the fixture
    assert result.ret == 10
    assert "signal 9" in next(junit.iter("error")).text
    assert "signal 9" in next(junit.iter("system-err")).text


def test_junit_properties_contain_interval_and_baseline_change(run):
    _, junit = run(
        """
from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval

def test_it(perf):
    perf.record(CheckResult("baseline ttft_p50", Verdict.PASS, "ttft_p50", Unit.CHANGE, Comparison.AT_MOST, 0.15, 0.045,
                            Interval(0.01, 0.08, 0.95), before=40.0, after=41.8))
"""
    )
    value_by_name = {element.get("name"): element.get("value") for element in junit.iter("property")}
    assert [value_by_name[f"llmperf.{name}"] for name in (
        "baseline.ttft_p50_ms", "change.ttft_p50_pct", "change_low.ttft_p50_pct", "change_high.ttft_p50_pct",
    )] == ["40", "4.5", "1", "8"]
    assert value_by_name["llmperf.test"] == "test_it.py::test_it"


def test_junit_file_is_read_by_junitparser(run):
    run('def test_it(perf): give(perf, "PASS")')
    (suite,) = JUnitXml.fromfile("junit.xml")
    (case,) = suite
    value_by_name = {entry.name: entry.value for entry in case.child(Properties)}
    assert (value_by_name["llmperf.verdict"], value_by_name["llmperf.decided_by"]) == ("PASS", "2 ms  ttft_p99 <= PASS")


BROKEN = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

LOAD = random_tokens(input=64, output=8, arrivals=closed(2), requests=6)

@pytest.fixture
def broken(): raise RuntimeError("no fixture")

@pytest.fixture
def late():
    yield
    raise RuntimeError("late")

def test_type_error(perf): raise TypeError("x")
def test_fixture_first(broken, perf): pass
def test_fixture_last(perf, broken): pass
@pytest.mark.engine(vllm("no-such-model"))
def test_engine_without_model(engine, perf): pass
def test_measured_model(perf): perf.measure(vllm("no-such-model"), LOAD)
@pytest.mark.engine(vllm("llama-3.1-8b"))
def test_attribute(engine, perf): engine.nothing()
def test_wrong_argument(perf): perf.check(None, "ttft_p50 <= 1s")
def test_teardown(perf, late): pass
@pytest.mark.engine(lambda case: 1 / 0)
def test_function_of_a_case(engine, perf): pass
def test_no_marker(engine, perf): pass
"""


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["plain", "xdist"])
def test_report_has_each_broken_test_of_session_without_measurement(run, pytester, options):
    result, _ = run(BROKEN, "--emulate", "h200", *options)
    result.stdout.fnmatch_lines(["*= llmperf: 7 FAILED, 3 USAGE =*"])
    (page,) = pytester.path.glob(".llmperf/runs/*/report.html")
    assert not list(pytester.path.glob(".llmperf/runs/*/tests/*"))
    assert set(re.findall(r'<code class="id">test_it\.py::(\w+)', page.read_text())) == set(
        re.findall(r"def (test_\w+)", BROKEN))
