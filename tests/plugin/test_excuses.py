"""Quarantined tests and acknowledged regressions run, are shown with reason and day, and gate only after that day."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from pytest_llmperf.cli import main
from pytest_llmperf.report.junit import read_release
from pytest_llmperf.results.reader import read_run

LATER, EARLIER = "2999-12-31", "2020-01-31"
BODIES = {
    "fail": 'give(perf, "FAIL")', "error": 'give(perf, "ERROR")', "open": 'give(perf, "INCONCLUSIVE")',
    "missing": 'give(perf, "NO_BASELINE")', "broken": 'raise TypeError("unsupported")', "good": 'give(perf, "PASS")',
}


def suite(until, names):
    marks = f"""
import pytest

pytestmark = [pytest.mark.owner("team-serving"), pytest.mark.quarantine(reason="noisy host", until="{until}")]
"""
    return marks + "".join(f"\ndef test_{name}(perf): {BODIES[name]}\n" for name in names)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("CI", "1")  # where a missing baseline fails


def properties_of(case):
    return {element.get("name"): element.get("value") for element in case.iter("property")}


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_red_quarantined_tests_do_not_gate_and_show_reason_and_owner(run, options):
    result, junit = run(suite(LATER, BODIES), *options)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*llmperf: 5 QUARANTINED, 1 PASS*", "*5 quarantined*"])
    lines = [line for line in result.outlines if line.startswith("QUARANTINED ")]
    assert [f"until {LATER}: noisy host; owner: team-serving" in line for line in lines] == [True] * 5
    properties = {case.get("name"): properties_of(case) for case in junit.iter("testcase")}
    assert {name: "llmperf.excuse" in each for name, each in properties.items()} == {
        f"test_{name}": name != "good" for name in BODIES}
    assert {each["llmperf.owner"] for each in properties.values()} == {"team-serving"}
    totals = next(junit.iter("testsuite"))
    assert (totals.get("failures"), totals.get("errors")) == ("0", "0")


def test_quarantined_error_leaves_exit_code_of_a_failure_to_the_failure(run):
    text = suite(LATER, ["error"]).replace("pytestmark = [", "marks = [")
    text = text.replace("def test_error", "@marks[1]\ndef test_error") + f"\ndef test_other(perf): {BODIES['fail']}\n"
    result, _ = run(text)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*llmperf: 1 FAIL, 1 QUARANTINED*"])


def test_expired_quarantine_is_red_even_where_the_test_passes(run):
    result, _ = run(suite(EARLIER, ["good", "fail", "error"]))
    assert result.ret == 1
    lines = {line.split()[1]: line for line in result.outlines if line.startswith(("FAIL ", "FAILED  ", "ERROR  "))}
    assert "The quarantine of this test has expired on 2020-01-31: noisy host." in lines["test_good"]
    assert "was quarantined until 2020-01-31: noisy host; owner: team-serving" in lines["test_fail"]
    assert "was quarantined until 2020-01-31: noisy host" in lines["test_error"]


SKIPPING = {
    "skips": 'pytest.skip("later")', "xfails": 'pytest.xfail("later")', "measures_nothing": "pass",
    "marked": "pass", "expected": "assert 0", "elsewhere": "pass",
}
MARKS = {"marked": '@pytest.mark.skip("later")', "expected": "@pytest.mark.xfail", "elsewhere": "@pytest.mark.h200"}


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_expired_quarantine_is_red_where_the_test_skips_itself_and_green_where_it_lacks_hardware(run, options):
    text = suite(EARLIER, []) + "".join(
        f"\n{MARKS.get(name, '')}\ndef test_{name}(perf): {body}\n" for name, body in SKIPPING.items())
    result, junit = run(text, *options)
    assert result.ret == 1
    red = {line.split()[1]: line for line in result.outlines if line.startswith("FAILED  ")}
    assert set(red) == {f"test_{name}" for name in SKIPPING} - {"test_elsewhere"}
    assert all("The quarantine of this test has expired on 2020-01-31: noisy host." in line for line in red.values())
    children = {case.get("name"): [child.tag for child in case if child.tag != "properties"]
                for case in junit.iter("testcase")}
    assert children["test_elsewhere"] == ["skipped"]
    result, _ = run(text.replace(EARLIER, LATER), *options)
    assert result.ret == 0


MARKERS = ("quarantine", 'quarantine("noisy")', 'quarantine("noisy", "soon")', 'quarantine("", "2999-12-31")', "owner",
           "owner(1)", 'owner(" ")', 'quarantine(None, "2999-12-31")', 'quarantine("noisy", until="2999-12-31", x=1)',
           'quarantine("noisy", __import__("datetime").date(2999, 12, 31))')


def test_wrong_marker_is_refused_before_the_test_runs(run):
    tests = "".join(f'@pytest.mark.{marker}\ndef test_{number}(perf): assert "the test ran" == 0\n\n'
                    for number, marker in enumerate(MARKERS))
    result, _ = run(f"import pytest\n\n{tests}")
    assert result.ret == 1
    assert "the test ran" not in result.stdout.str()
    for number, marker in enumerate(MARKERS):
        name = marker.partition("(")[0]
        result.stdout.fnmatch_lines([f"USAGE*test_it.py::test_{number}: write @pytest.mark.{name}(*"])


def test_control_characters_of_markers_leave_the_junit_file_valid_and_the_lines_whole(run):
    marks = r"""@pytest.mark.owner("team\x1b[31m\nserving")
@pytest.mark.quarantine("noisy\u202e\x00\nhost", "2999-12-31")
"""
    result, junit = run(f"import pytest\n\n{marks}def test_it(perf): {BODIES['fail']}\n")
    assert result.ret == 0
    properties = properties_of(next(junit.iter("testcase")))
    assert properties["llmperf.owner"] == r"team\x1b[31m serving"
    assert properties["llmperf.excuse"] == r"QUARANTINED until 2999-12-31: noisy\u202e\x00 host"
    result.stdout.fnmatch_lines(["QUARANTINED *until 2999-12-31: noisy*host; owner: team*serving*"])


@pytest.mark.parametrize("days", [0, -1])
def test_quarantine_holds_on_its_last_day_and_no_longer(run, days):
    until = datetime.now(UTC).date() + timedelta(days)
    result, _ = run(suite(until.isoformat(), ["fail"]))
    assert result.ret == (0 if days == 0 else 1)


def test_markers_change_nothing_for_tests_without_llmperf(run):
    result, _ = run("import pytest\n\n@pytest.mark.owner(1)\n@pytest.mark.quarantine\ndef test_it(): assert 0\n"
                    f"def test_other(perf): {BODIES['good']}\n")
    result.assert_outcomes(failed=1, passed=1)


REGRESSED = """
from pytest_llmperf import closed, random_tokens, vllm

def test_it(perf):
    run = perf.measure(vllm("llama-3.1-8b"), random_tokens(input=64, output=8, arrivals=closed(2), requests=6), runs=2)
    perf.check(run, "ttft_p50 <= 1us", "error_rate == 0")
"""


def acknowledge(pytester, monkeypatch, until=LATER, metric="ttft_p50", reason="vLLM samples on the CPU"):
    monkeypatch.chdir(pytester.path)
    return main(["acknowledge", "test_it", metric, "--reason", reason, "--until", until])


@pytest.mark.emulated
def test_acknowledged_regression_stays_visible_and_does_not_gate_until_its_day(run, pytester, monkeypatch, capsys):
    result, _ = run(REGRESSED, "--emulate", "h200")
    assert result.ret == 1
    assert acknowledge(pytester, monkeypatch) == 0
    assert re.search(rf"ttft_p50 of test_it.py::test_it on emulated-h200 \(.* ms\) does not gate until {LATER}",
                     capsys.readouterr().out)
    result, junit = run(REGRESSED, "--emulate", "h200")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*llmperf: 1 ACKNOWLEDGED*"])
    assert properties_of(next(junit.iter("testcase")))["llmperf.verdict"] == "FAIL"
    runs = sorted((pytester.path / ".llmperf/runs").iterdir())
    for tests in (read_run(runs[-1]), read_release(pytester.path / "junit.xml")):
        assert [(test.outcome, test.verdict.value) for test in tests] == [("ACKNOWLEDGED", "FAIL")]
        assert tests[0].excuse == f"ACKNOWLEDGED until {LATER}: vLLM samples on the CPU"
    page = (runs[-1] / "report.html").read_text()
    assert "ACKNOWLEDGED" in page
    assert "vLLM samples on the CPU" in page
    assert main(["comment", "junit.xml"]) == 0
    text = capsys.readouterr().out
    assert "| ⚠️ ACKNOWLEDGED | `test_it`<br><sub>until 2999-12-31: vLLM samples on the CPU</sub> |" in text
    assert "\n## ✅ llmperf: 1 of 1 ACKNOWLEDGED" in text
    entry = pytester.path / "baselines/acknowledged.json"
    entry.write_text(entry.read_text().replace(LATER, EARLIER))
    result, _ = run(REGRESSED, "--emulate", "h200")
    assert result.ret == 1
    assert f"was acknowledged until {EARLIER}" in " ".join(result.stdout.str().split())


@pytest.mark.emulated
def test_other_metric_and_other_kind_fail_beside_acknowledged_metric(run, pytester, monkeypatch):
    assert run(REGRESSED, "--emulate", "h200")[0].ret == 1
    assert acknowledge(pytester, monkeypatch) == 0
    both = REGRESSED.replace('"error_rate == 0"', '"tpot_p50 <= 1us"')
    assert run(both, "--emulate", "h200")[0].ret == 1
    assert run(REGRESSED, "--emulate", "a100")[0].ret == 1


@pytest.mark.emulated
def test_own_exception_after_acknowledged_failure_still_fails(run, pytester, monkeypatch):
    assert run(REGRESSED, "--emulate", "h200")[0].ret == 1
    assert acknowledge(pytester, monkeypatch) == 0
    assert run(REGRESSED + "    assert 0\n", "--emulate", "h200")[0].ret == 1


@pytest.mark.emulated
def test_wrong_acknowledgement_is_refused_and_writes_nothing(run, pytester, monkeypatch, capsys):
    run(REGRESSED, "--emulate", "h200")
    capsys.readouterr()
    for wrong, sentence in (
        ({"metric": "tpot_p50"}, "tpot_p50 does not fail in test_it.py::test_it; ttft_p50 fails there."),
        ({"until": "soon"}, "--until soon: write a day as YYYY-MM-DD."),
        ({"until": EARLIER}, f"--until {EARLIER}: this day is over."),
        ({"reason": " "}, "--reason is empty."),
    ):
        assert acknowledge(pytester, monkeypatch, **wrong) == 2
        assert sentence in capsys.readouterr().err
    assert not (pytester.path / "baselines").exists()


def test_file_of_acknowledged_regressions_may_have_a_byte_order_mark_and_windows_line_ends(run, pytester):
    (pytester.path / "baselines").mkdir()
    path = pytester.path / "baselines/acknowledged.json"
    path.write_bytes('\ufeff{"schema": 1,\r\n "acknowledged": []}\r\n'.encode())
    assert run('def test_it(perf): give(perf, "PASS")\n')[0].ret == 0


@pytest.mark.parametrize(("content", "sentence"), [
    ("{", "no JSON at line 1"),
    ('{"schema": 2, "acknowledged": []}', "its schema is 2, and this version reads 1"),
    ('{"schema": 1, "acknowledged": [{}]}', "kind, metric, reason, seen, test, until is missing"),
])
def test_wrong_file_of_acknowledged_regressions_fails_tests_with_a_sentence(run, pytester, content, sentence):
    (pytester.path / "baselines").mkdir()
    (pytester.path / "baselines/acknowledged.json").write_text(content)
    result, _ = run('def test_it(perf): give(perf, "PASS")\n')
    assert result.ret == 10
    assert "acknowledged.json: " in result.stdout.str()
    assert sentence in result.stdout.str()


@pytest.mark.emulated
def test_second_acknowledgement_replaces_the_first(run, pytester, monkeypatch):
    run(REGRESSED, "--emulate", "h200")
    for until in ("2999-01-01", LATER):
        assert acknowledge(pytester, monkeypatch, until=until, reason="two\n\x1b[31mlines") == 0
    (entry,) = json.loads((pytester.path / "baselines/acknowledged.json").read_text())["acknowledged"]
    assert (entry["until"], entry["reason"]) == (LATER, r"two \x1b[31mlines")
    assert main(["baselines", "list"]) == 0
