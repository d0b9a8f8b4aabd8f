"""`llmperf history` over run folders, baselines in git and JUnit files: series, change points, causes, page."""

import json
import re
import subprocess
from html.parser import HTMLParser
from random import Random

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.cli import main
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.testing.records import make_record

TEST = "suites/test_it.py::test_it"
RUNS = ".llmperf/runs"


def session_id(day):
    return f"202601{1 + day // 10:02d}T00{day:04d}Z-aaaaaa"


def write_session(folder, day, factor=1.0, *, version="1", host="aaaa", core_ms=1.0, test=TEST, kind="h200", sd=0.004):
    """One session of three runs, whose level has a standard deviation of `sd`."""
    level = 10 * factor * (1 + Random(f"{day} {test} {host}").gauss(0, sd))
    runs = tuple(Run(seed, 1, (make_record(0, itl_ms=[level * noise] * 4),))
                 for seed, noise in enumerate((0.99, 1.0, 1.01)))
    conditions = {"hardware": kind, "engine": "vllm", "engine.version": version, "workload": "w", "flags": "{}",
                  "formulas": "tpot.1"}
    measured = Measurement("vllm('m')", "w", conditions, runs, baseline="", primaries=("tpot_mean",))
    run = folder / session_id(day)
    write_test(run, test, [measured], [CheckResult("tpot_mean <= 1s", Verdict.PASS, "tpot_mean")])
    (run / "session.json").write_text(json.dumps({
        "schema": 1, "session": run.name, "date": f"2026-01-{1 + day // 10:02d}", "commit": f"c{day}", "dirty": False,
        "host": host, "canary": [{"host": host, "one_core_ms": core_ms}]}))
    return run


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def history(capsys, *arguments, code=0):
    assert main(["history", *map(str, arguments)]) == code
    output = capsys.readouterr()
    return output.out if code == 0 else output.err


def table(text, head):
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {head} |"):
            next(lines)
            break
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in iter(lambda: next(lines, ""), "")]


def test_change_of_the_build_is_named_with_level_and_interval(here, capsys):
    for day in range(34):
        write_session(here / RUNS, day, 1.03 if day >= 30 else 1.0, version="2" if day >= 30 else "1")
    text = history(capsys)
    assert "## History: 1 changes in 1 series" in text
    ((since, test, metric, place, level, change, cause),) = table(text, "since")
    assert (since, test, metric, place) == ("2026-01-04", "`test_it`", "`tpot_mean`", "h200, aaaa")
    assert re.fullmatch(r"(9\.9|10\.)\S* ms → 10\.[23]\S* ms", level)
    assert re.fullmatch(r"\+[23]\.\d % \(95 % CI \+[12]\.\d % … \+[34]\.\d %\), worse", change)
    assert cause == "build: version 1 → 2"


def test_slower_host_without_another_build_is_named(here, capsys):
    for day in range(34):
        write_session(here / RUNS, day, 1.05 if day >= 30 else 1.0, core_ms=1.4 if day >= 30 else 1.0)
    ((*_, cause),) = table(history(capsys), "since")
    assert cause == "host: one_core_ms 1 → 1.4"


def test_change_of_most_series_of_a_host_is_the_host_without_a_canary(here, capsys):
    for day in range(34):
        for number in range(3):
            run = write_session(here / RUNS, day, 1.05 if day >= 30 else 1.0, test=f"{TEST}_{number}")
        session = json.loads((run / "session.json").read_text())
        (run / "session.json").write_text(json.dumps({**session, "canary": []}))
    rows = table(history(capsys), "since")
    assert [row[-1] for row in rows] == ["host: 3 of 3 series of this host change here"] * 3


def test_change_without_a_recorded_reason_names_the_commits(here, capsys):
    for day in range(34):
        write_session(here / RUNS, day, 1.05 if day >= 30 else 1.0)
    ((*_, cause),) = table(history(capsys), "since")
    assert cause == "no recorded change of build or host: commit c29 → c30"


def test_hosts_and_kinds_and_loads_are_series_of_their_own(here, capsys):
    for day in range(12):
        write_session(here / RUNS, day, host="aaaa" if day % 2 else "bbbb", factor=1.0 if day % 2 else 2.0)
    write_session(here / RUNS, 20, kind="l4")
    rows = table(history(capsys), "test")
    assert [(row[2], row[3]) for row in rows] == [("h200, aaaa", "6"), ("h200, bbbb", "6"), ("l4, aaaa", "1")]
    assert {row[6] for row in rows} == {"needs 10 sessions first"}


def test_noise_makes_no_change_and_states_sessions_for_three_percent(here, capsys):
    for day in range(40):
        write_session(here / RUNS, day, sd=0.005)
    text = history(capsys)
    assert "## History: 0 changes in 1 series" in text
    ((*_, sd, needed),) = table(text, "test")
    assert re.fullmatch(r"0\.[3-7]\d %", sd)
    assert needed == "2 sessions"


def git(folder, *arguments):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", folder, *arguments], check=True,
                   capture_output=True)


def test_sessions_that_left_the_baselines_are_read_from_git(here, capsys):
    git(here, "init", "-q")
    for day in range(14):
        run = write_session(here / "elsewhere", day, sd=0.001)
        assert main(["baselines", "take", str(run), "--accept", "a level"]) == 0
        git(here, "add", "baselines")
        git(here, "commit", "-qm", "Take a session")
    capsys.readouterr()
    ((_, _, _, sessions, *_),) = table(history(capsys), "test")
    assert sessions == "14"
    git(here, "clone", "-q", "--depth", "1", f"file://{here}", str(here / "shallow"))
    text = history(capsys, "shallow/baselines")
    assert "is shallow, so older sessions may be missing. Get them: git fetch --unshallow" in text
    assert int(table(text, "test")[0][3]) < 14


def test_same_session_of_two_sources_counts_once(here, capsys):
    run = write_session(here / RUNS, 1)
    assert main(["baselines", "take", str(run)]) == 0
    capsys.readouterr()
    ((_, _, _, sessions, *_),) = table(history(capsys), "test")
    assert sessions == "1"


def test_sessions_that_all_ended_in_error_are_counted_where_nothing_else_is_stored(here, capsys):
    write_test(here / RUNS / session_id(1), TEST, [], [], complete=False, error="the server died")
    assert "tests left out because they ended in ERROR: 1" in history(capsys, code=2)


def junit(path, run):
    (file,) = (run / "tests").iterdir()
    path.write_text("<testsuites><testsuite><testcase classname='x' name='y'><properties>"
                    f"<property name='llmperf.test' value='{TEST}'/><property name='llmperf.verdict' value='PASS'/>"
                    f"<property name='llmperf.run_file' value='{file}'/></properties></testcase></testsuite>"
                    "</testsuites>")


def test_junit_files_of_releases_are_sessions_by_their_run_folders(here, capsys):
    for day in range(3):
        junit(here / f"v{day}.xml", write_session(here / "kept", day))
    ((_, _, _, sessions, *_),) = table(history(capsys, "v0.xml", "v1.xml", "v2.xml"), "test")
    assert sessions == "3"


def test_acknowledged_regressions_without_stored_baselines_are_no_source(here, capsys):
    write_session(here / RUNS, 0)
    (here / "baselines").mkdir()
    (here / "baselines/acknowledged.json").write_text('{"schema": 1, "acknowledged": []}')
    assert "History: 0 changes in " in history(capsys)


def test_wrong_sources_are_refused_with_a_sentence(here, capsys):
    (here / "empty").mkdir()
    junit(here / "alone.xml", write_session(here / "kept", 1))
    (here / "kept").rename(here / "moved")
    for arguments, sentence in (
        (["empty"], "empty: this is no run folder, no folder of run folders or baselines, and no JUnit file."),
        (["absent"], "absent: there is no such file or folder."),
        (["alone.xml"], "alone.xml: the run folder that this JUnit file names is not beside it"),
        (["moved", "--test", "nothing"], f"no session with such a test and metric is stored; there are {TEST} on h200"),
        ([], "no session with such a test and metric is stored."),
        (["moved", "--metric", "speed"], "speed"),
    ):
        assert sentence in history(capsys, *arguments, code=2)


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.dots, self.outside = [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if "dot" in (values.get("class") or ""):
            self.dots.append(values["href"])
        self.outside += [value for name, value in attrs if name in ("src", "href") and "//" in (value or "")]
        assert tag != "script"


def test_page_links_each_session_to_its_run_and_loads_nothing(here, capsys):
    for day in range(12):
        (write_session(here / RUNS, day) / "report.html").write_text("report")
    assert history(capsys, "--html", "site") == "site/history.html\n"
    page = Links()
    page.feed((here / "site/history.html").read_text())
    assert len(page.dots) == 12
    assert all((here / "site" / href).resolve().read_text() == "report" for href in page.dots)
    assert page.outside == []


def test_two_claims_of_one_test_are_two_series(here, capsys):
    runs = tuple(Run(seed, 1, (make_record(0, itl_ms=[10.0] * 4),)) for seed in range(3))
    conditions = {"hardware": "h200", "engine": "vllm", "workload": "w", "flags": "{}", "formulas": "tpot.1"}
    sides = [Measurement("vllm('m')", "w", conditions, runs, side=side) for side in ("a", "b", "a", "b")]
    write_test(here / RUNS / session_id(1), TEST, sides, [CheckResult("claim", Verdict.PASS, "tpot_mean")])
    rows = table(history(capsys, "--metric", "tpot_mean"), "test")
    assert [row[0] for row in rows] == ["`test_it [a1]`", "`test_it [a3]`"]
