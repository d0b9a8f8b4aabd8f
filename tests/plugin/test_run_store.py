"""The setting `runs_store`: a copy of the run folder at the end, and a store that refuses before anything starts."""

import sys

import pytest

pytestmark = pytest.mark.emulated
SUITE = """
import pytest
from pathlib import Path
from pytest_llmperf import closed, random_tokens, vllm

@pytest.mark.h200
def test_it(perf):
    Path("began").touch()
    run = perf.measure(vllm("tiny", max_model_len=1024),
                       random_tokens(input=64, output=8, arrivals=closed(2), requests=12), runs=1)
    perf.check(run, "error_rate == 0")
    AT_THE_END
"""


@pytest.fixture
def run(pytester):
    def run(url, at_the_end="", *arguments):
        pytester.makepyfile(test_it=SUITE.replace("AT_THE_END", at_the_end))
        return pytester.runpytest_subprocess("-m", "h200", "--emulate", "h200", "-p", "no:cacheprovider",
                                             f"--llmperf-set=runs_store={url}", *arguments)

    return run


def test_run_folder_is_copied_with_its_report(run, pytester):
    result = run(f"file://{pytester.path}/store")
    assert result.ret == 0
    (folder,) = (pytester.path / ".llmperf" / "runs").iterdir()
    copy = pytester.path / "store" / folder.name
    result.stdout.fnmatch_lines([f"llmperf run folder: file://{copy}"])
    stored = {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    local = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert stored == local
    assert {"report.html", "session.json", "outcomes.json"} <= {path.name for path in stored}


def test_copy_holds_the_files_of_all_workers(run, pytester):
    assert run(f"file://{pytester.path}/store", "", "-n", "2").ret == 0
    assert len(list(pytester.path.glob("store/*/tests/*.gw?.json"))) == 1


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_store_that_refuses_ends_session_before_the_first_test(run, pytester, workers):
    (pytester.path / "file").touch()
    result = run(f"file://{pytester.path}/file/store", "", *workers)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: The run store 'file://*/store' refuses files: *Correct the URL*"])
    assert not (pytester.path / "began").exists()


def test_store_that_fails_at_the_end_leaves_verdict_and_local_run_folder(run, pytester):
    result = run(f"file://{pytester.path}/store", "import shutil; shutil.rmtree('store'); Path('store').touch()")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["llmperf run folder: *runs/* alone. The run store * refuses files: *"])
    assert len(list(pytester.path.glob(".llmperf/runs/*/report.html"))) == 1


@pytest.mark.parametrize("arguments", [("-k", "plain"), ("--collect-only",), ("--fixtures",)])
def test_session_that_measures_nothing_leaves_the_store_alone(run, pytester, arguments):
    pytester.makepyfile(test_other="def test_plain(): pass")
    assert run(f"file://{pytester.path}/store", "", "-m", "", *arguments).ret == 0
    assert not (pytester.path / "store").exists()


def test_run_folder_of_killed_session_is_copied_by_the_next_session(run, pytester):
    url = f"file://{pytester.path}/store"
    assert run(url, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").ret == -9
    (killed,) = (pytester.path / ".llmperf" / "runs").iterdir()
    assert not (pytester.path / "store" / killed.name).exists()
    result = run(url)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"llmperf run folder: {url}/{killed.name}"])
    assert {path.name for path in (pytester.path / "store").iterdir()} == {
        "begun", *(folder.name for folder in (pytester.path / ".llmperf" / "runs").iterdir())}
    assert not list((pytester.path / "store" / "begun").iterdir())


def test_commands_read_runs_of_a_store_and_leave_no_copy(run, pytester, monkeypatch):
    url = f"file://{pytester.path}/store"
    for seed in ("1", "2"):
        assert run(url, "", f"--emulate-seed={seed}").ret == 0
    (pytester.path / ".llmperf").rename(pytester.path / "gone")
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("temporary")))
    first, second = sorted(path.name for path in (pytester.path / "store").iterdir() if path.name != "begun")

    def printed(*words):
        result = pytester.run(sys.executable, "-m", "pytest_llmperf", *words)
        assert result.ret == 0
        return result.stdout

    printed("show", f"{url}/newest").fnmatch_lines(["PASS*test_it.py::test_it*"])
    printed("show", f"{url}/{first}", "test_it").fnmatch_lines(["*error_rate*"])
    printed("diff", f"{url}/{first}", f"{url}/{second}").fnmatch_lines(["*test_it*"])
    printed("history", url, "--metric", "ttft_p50").fnmatch_lines(["| `test_it` | `ttft_p50` | * | 2 | *"])
    printed("history", f"{url}/{first}").fnmatch_lines(["| `test_it` | * | 1 | *"])
    printed("report", f"{url}/newest")
    assert (pytester.path / "report.html").stat().st_size
    assert not list((pytester.path / "temporary").glob("*/store-*"))
