"""`llmperf show`, `diff`, `comment`, `report` and `export` as they are typed, on runs good and broken."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.cli import main
from pytest_llmperf.metrics import measure
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.testing.records import make_record

TEST = "tests/test_a.py::test_x[h200]"
COMMANDS = {
    "show": ["show", "RUN"],
    "report": ["report", "RUN", "--out", "out"],
    "diff": ["diff", "good", "RUN"],
    "comment": ["comment", "RUN"],
    "comment --against": ["comment", "good", "--against", "RUN"],
    "export": ["export", "RUN", "--format", "csv", "--out", "out"],
}


def write_run(folder, verdict=Verdict.PASS, ttft_ms=50, records=None, **fields):
    records = records or [make_record(i, intended_ms=i, ttft_ms=ttft_ms) for i in range(3)]
    runs = tuple(Run(seed, 1, tuple(records)) for seed in range(3))
    conditions = {"hardware": "h200", "engine": "vllm"}
    measured = Measurement("vllm('m')", "w", conditions, runs, tuple(measure(run.records) for run in runs), **fields)
    return write_test(folder, TEST, [measured], [CheckResult("ttft_p50 <= 1s", verdict, "ttft_p50")])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "good")
    return tmp_path


def spoil_schema(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))


BROKEN = {
    "missing": lambda folder: None,
    "empty": lambda folder: folder.mkdir(),
    "cut short": lambda folder: (path := write_run(folder)).write_text(path.read_text()[:200]),
    "no JSON": lambda folder: write_run(folder).write_bytes(b"\xff\x00"),
    "other schema": lambda folder: spoil_schema(write_run(folder)),
    "a text file": lambda folder: folder.write_text("hello"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", BROKEN)
def test_broken_run_is_refused_with_exit_code_2_and_no_output_file(here, capsys, command, how):
    BROKEN[how](here / "bad")
    earlier_files = sorted(here.rglob("*"))
    assert main([word.replace("RUN", "bad") for word in COMMANDS[command]]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(rf"llmperf {COMMANDS[command][0]}: bad.*\.\n", output.err, re.S)
    assert "Traceback" not in output.err
    assert sorted(here.rglob("*")) == earlier_files


EVIL = "a\x1b]0;title\x07b\x1b[2J\x9b31mc\r\u202ed"


@pytest.mark.parametrize("command", [
    ["show", "evil"], ["show", "evil", "test_x"], ["diff", "good", "evil"], ["diff", "evil", "evil"],
    ["comment", "evil", "--against", "good"], ["comment", "evil"],
    ["show", "evil", "nothing"], ["diff", "good.xml", "evil.xml"], ["comment", "evil.xml", "--against", "good.xml"],
])  # fmt: skip
def test_terminal_controls_in_run_file_or_junit_are_not_printed(here, capsys, command):
    path = write_run(here / "evil", Verdict.FAIL)
    content = json.loads(path.read_text())
    content["test"] += EVIL
    content["measurements"][0] |= {"engine": EVIL, "workload": EVIL, "conditions": {"hardware": "h200", EVIL: EVIL}}
    content["checks"][0] |= {"reason": EVIL, "metric": EVIL}
    path.write_text(json.dumps(content))
    for name in ("good", "evil"):
        (here / f"{name}.xml").write_text(junit_of(json.loads(next((here / name / "tests").iterdir()).read_text())))
    assert main(command) in (0, 2)
    output = capsys.readouterr()
    shown = output.out + output.err
    assert "test_x[h200]" in shown
    assert [char for char in shown if char != "\n" and not char.isprintable()] == []


def junit_of(content):
    """What JUnit holds of a test; XML has no place for most controls."""
    verdict, text = content["checks"][0]["verdict"], "a\x9b31mb\u202ec\x7f"
    test = content["test"].partition("\x1b")[0] + "\x9b2J"
    properties = [("llmperf.test", test), ("llmperf.decided_by", text), ("llmperf.verdict", verdict)]
    shown = "".join(f"<property name={quoteattr(name)} value={quoteattr(value)}/>" for name, value in properties)
    return f"<testsuite><testcase name='x' classname='y'><properties>{shown}</properties></testcase></testsuite>"


@pytest.mark.parametrize("value", [1e-308, 5e-324, 1e308, 10**25 * 10**25])
def test_extreme_metric_in_run_file_is_exit_code_2_and_named(here, capsys, value):
    path = write_run(here / "extreme")
    content = json.loads(path.read_text())
    content["measurements"][0]["runs"][1]["metrics"]["ttft_p50"] = value
    path.write_text(json.dumps(content))
    for command in (["show", "extreme"], ["diff", "extreme", "good"], ["comment", "extreme", "--against", "good"]):
        assert main(command) == 2
        output = capsys.readouterr()
        assert "measurements[0].runs[1].metrics.ttft_p50" in output.err
        assert "is no measured value" in output.err
        assert output.out == ""


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(1e-30, 1e30), min_size=6, max_size=6))
def test_any_accepted_metrics_are_compared_without_exception(values):
    with TemporaryDirectory() as folder:
        for name, three in (("a", values[:3]), ("b", values[3:])):
            path = write_run(Path(folder) / name)
            content = json.loads(path.read_text())
            for run, value in zip(content["measurements"][0]["runs"], three, strict=True):
                run["metrics"] |= {"ttft_p50": value, "tpot_mean": value}
            path.write_text(json.dumps(content))
        assert main(["diff", f"{folder}/a", f"{folder}/b", "--all"]) == 0


@pytest.mark.parametrize("named", ["../outside.json.gz", "/absolute.json.gz", "requests/link.json.gz", "/dev/zero"])
def test_requests_outside_run_folder_are_refused_and_path_named(here, capsys, named):
    path = write_run(here / "odd")
    content = json.loads(path.read_text())
    content["measurements"][0]["runs"][0]["requests"] = named
    path.write_text(json.dumps(content))
    (here / "outside.json.gz").write_bytes(next((here / "good/requests").iterdir()).read_bytes())
    (here / "odd/requests/link.json.gz").symlink_to(here / "outside.json.gz")
    for command in (["show", "odd"], ["export", "odd", "--format", "csv", "--out", "out.csv"], ["report", "odd"]):
        assert main(command) == 2
        error_output = capsys.readouterr().err
        assert str(path.relative_to(here)) in error_output
        assert f"'{named}' is no path in the run folder" in error_output
    assert not (here / "out.csv").exists()


def test_show_prints_verdicts_or_metrics_of_chosen_test(here, capsys):
    assert main(["show", "good"]) == 0
    assert capsys.readouterr().out == f"PASS  {TEST}  ttft_p50 <= 1s\n1 PASS\n"
    assert main(["show", "good", "test_x"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"ttft_p50 +50 ms +50 ms +50 ms", output)
    assert main(["show", "good", "nothing"]) == 2


def test_diff_and_comment_show_worse_test_with_changes(here, capsys, message):
    write_run(here / "bad", Verdict.FAIL, ttft_ms=90)
    assert main(["diff", "good", "bad", "--all"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    message(*(line for line in lines if line.startswith(("WORSE", "ttft_p50 ", "e2el_p99 "))))
    assert main(["comment", "bad", "--against", "good", "--link", "https://ci/2"]) == 0
    message(capsys.readouterr().out)


def slow_tail(outcome):
    """200 requests, the last six of which are far slower than the others, and end like this."""
    return [make_record(i, ttft_ms=50 + i if i < 194 else 500, outcome=outcome if i >= 194 else Outcome.OK)
            for i in range(200)]


def test_dropped_slowest_requests_are_shown_as_infinite_and_not_as_faster(here, capsys):
    for name, outcome in (("slow", Outcome.OK), ("drops", Outcome.TIMEOUT)):
        write_run(here / name, records=slow_tail(outcome), primaries=("ttft_p50", "ttft_p99"))
    unending = "infinite: 3 % of requests failed (18 × timeout)"
    for runs, tail in ((["slow", "drops"], f"500 ms +{re.escape(unending)}"),
                       (["drops", "slow"], f"{re.escape(unending)} +500 ms")):
        assert main(["diff", *runs]) == 0
        output = capsys.readouterr().out
        assert output.startswith(f"UNKNOWN: {TEST}: PASS\n")
        assert re.search(r"ttft_p50 +149.5 ms +149.5 ms +\+0.0 % ", output)  # the dropped are above it both times
        assert re.search(f"ttft_p99 +{tail} +undecided", output)
        assert "better" not in output
    assert main(["comment", "drops", "--against", "slow"]) == 0
    output = capsys.readouterr().out
    assert "compared with slow: **1 unknown**" in output
    assert f"`ttft_p99` | 500 ms → {unending} | undecided |  |" in output


def test_trend_of_infinite_values_in_both_runs_is_unknown(here, capsys, message):
    write_run(here / "drops", records=slow_tail(Outcome.TIMEOUT), primaries=("ttft_p99",))
    assert main(["diff", "drops", "drops"]) == 0
    message(capsys.readouterr().out)


def test_metrics_that_no_request_has_any_more_are_still_compared(here, capsys, message):
    write_run(here / "none", records=[make_record(i, outcome=Outcome.TIMEOUT) for i in range(3)])
    assert main(["diff", "good", "none"]) == 0
    message(capsys.readouterr().out)


def test_undefined_metric_is_omitted_instead_of_infinite(here, capsys):
    """Of one token there is no time per token, whoever failed."""
    outcomes = (Outcome.OK, Outcome.OK, Outcome.TIMEOUT)
    write_run(here / "one", records=[make_record(i, chunks=1, outcome=outcome) for i, outcome in enumerate(outcomes)])
    assert main(["diff", "one", "one"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("STAYED")
    assert "ttft_p50" in output
    assert "tpot" not in output


def test_run_of_older_version_is_compared_by_stored_metrics(here, capsys):
    for name, outcome in (("slow", Outcome.OK), ("drops", Outcome.TIMEOUT)):
        path = write_run(here / name, records=slow_tail(outcome), primaries=("ttft_p99",))
        content = json.loads(path.read_text())
        for run in content["measurements"][0]["runs"]:
            del run["judged"]
        path.write_text(json.dumps(content))
    assert main(["diff", "slow", "drops"]) == 0
    assert re.search(r"ttft_p99 +500 ms +241.1 ms +-51.8 % ", capsys.readouterr().out)


def test_comment_shows_whole_name_of_run_folder(here, capsys):
    for name in ("v0.9.1", "v0.9.2"):
        write_run(here / name, Verdict.PASS, ttft_ms=50)
    assert main(["comment", "v0.9.2", "--against", "v0.9.1"]) == 0
    assert "compared with v0.9.1: **1 stayed** · v0.9.2" in capsys.readouterr().out


def test_report_writes_html_file_to_run_or_given_folder(here, capsys):
    assert main(["report", "good"]) == 0
    assert capsys.readouterr().out == "good/report.html\n"
    assert TEST in (here / "good/report.html").read_text()
    assert main(["report", "good", "--out", "deep/er"]) == 0
    assert (here / "deep/er/report.html").is_file()


def test_report_of_run_given_twice_lists_each_test_once(here, capsys, monkeypatch):
    monkeypatch.chdir(here / "good")
    assert main(["report", "../good", "."]) == 0
    text = (here / "good/report.html").read_text()
    assert re.search(r"<title>1 of 1 \w+ · .* · llmperf</title>", text)
    assert text.count(f'<code class="id">{TEST}</code>') == 1


def test_unwritable_report_path_is_refused(here, capsys):
    (here / "file").write_text("")
    assert main(["report", "good", "--out", "file/x"]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(("form", "written"), [("pytest-benchmark", "out"), ("csv", "out"), ("vllm", "out/*.json")])
def test_export_writes_file_in_each_format(here, capsys, form, written):
    assert main(["export", "good", "--format", form, "--out", "out", "--test", "test_x"]) == 0
    (path,) = here.glob(written)
    assert capsys.readouterr().out == f"{path.relative_to(here)}\n"


@pytest.fixture
def project(here):
    """A project with two stored runs; the newer one is slower and fails."""
    (here / "llmperf.toml").write_text("")
    runs = here / ".llmperf/runs"
    write_run(runs / "20261124T100000Z-aaaaaa")
    write_run(runs / "20261125T100000Z-bbbbbb", verdict=Verdict.FAIL, ttft_ms=80)
    return runs


def test_command_without_run_takes_the_newest_run(project, capsys):
    assert main(["show"]) == 0
    shown = capsys.readouterr()
    assert "FAIL" in shown.out
    assert shown.err == "The newest run: .llmperf/runs/20261125T100000Z-bbbbbb\n"
    assert main(["report", "--out", "out"]) == 0
    assert main(["export", "--format", "csv", "--out", "requests.csv"]) == 0
    assert "80" in Path("requests.csv").read_text()


def test_show_with_one_word_takes_a_test_of_the_newest_run(project, capsys):
    assert main(["show", "test_x"]) == 0
    assert "bbbbbb" in capsys.readouterr().err


@pytest.mark.parametrize("named", [[], ["20261125T100000Z-bbbbbb"]])
def test_diff_with_less_than_two_runs_takes_the_run_before(project, capsys, named):
    assert main(["diff", *(str(project / name) for name in named)]) == 0
    assert "aaaaaa" in capsys.readouterr().err


def test_diff_of_the_oldest_run_asks_for_both_runs(project, capsys):
    assert main(["diff", str(project / "20261124T100000Z-aaaaaa")]) == 2
    assert "llmperf diff OLD NEW" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["show"], ["report"], ["diff"], ["export", "--format", "csv", "--out", "out"]])
def test_command_in_project_without_runs_asks_for_a_run(here, capsys, command):
    assert main(command) == 2
    assert "No run is stored in this project. Run pytest first, or name a run folder." in capsys.readouterr().err
