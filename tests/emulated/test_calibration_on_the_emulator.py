"""`llmperf calibrate`: suite runs on engines that restart are suite runs, and the command does what its help says."""

import json
import math
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf import Perf, closed, poisson, random_tokens, sglang, shared_prefix, vllm
from pytest_llmperf.calibration import slow_servers
from pytest_llmperf.calibration.emulated_session import EmulatedSession
from pytest_llmperf.calibration.suite_test import SuiteTest, outcome_of
from pytest_llmperf.config.emulation import GPUS, Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.process.tree import descendants, is_alive
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import emulated_hardware

ROOT = Path(__file__).parents[2]
PLAIN = vllm("llama-3.1-8b", max_model_len=16384)
DRAFTING = PLAIN.with_flags(speculative_config={"method": "ngram", "num_speculative_tokens": 4})
CASES = {
    "open loop": (PLAIN, random_tokens(input=512, output=32, arrivals=poisson(10), requests=30)),
    "drafts": (DRAFTING, random_tokens(input=256, output=40, arrivals=closed(2), requests=8)),
    "lmcache": (PLAIN.with_lmcache(l1_size_gb=20),
                shared_prefix(prefix=1000, suffix=32, output=8, groups=2, arrivals=closed(3), requests=12)),
    "shared": (sglang("llama-3.1-8b", context_length=16384),
               shared_prefix(prefix=1000, suffix=32, output=8, groups=2, arrivals=closed(3), requests=12)),
}
SUITE = """
import pytest
from pytest_llmperf import Perf, closed, random_tokens, vllm

@pytest.mark.h200
@pytest.mark.engine(vllm("llama-3.1-8b", max_model_len=4096))
def test_answers(engine, perf):
    run = perf.measure(engine, random_tokens(input=256, output=16, arrivals=closed(2), requests=12))
    perf.check(run, "error_rate == 0")
    primaries = ["ttft_p50", "tpot_mean", "output_throughput"]
    perf.compare_with_baseline(run, primaries=primaries, margins={"ttft_p50": 0.05, "tpot_mean": 0.3})
"""

pytestmark = pytest.mark.emulated


def measured_metrics(metrics):
    return {name: value for name, value in metrics.all().items() if value is not None}


@pytest.mark.parametrize("case", CASES)
def test_a_suite_runs_engine_measures_as_one_that_pytest_starts(tmp_path, case):
    spec, workload = CASES[case]
    emulation = Emulation("h200", noise="")
    whole = PerfSession(Settings(), tmp_path, emulated_hardware("h200", GPUS), lambda _line: None, emulation=emulation)
    with closing(whole), closing(EmulatedSession(Settings(), tmp_path, emulation)) as short:
        short.begin_suite_run(3)
        started, restarted = (
            Perf(begin_execution(session, "t", "h200")).measure(spec, workload) for session in (whole, short)
        )
    for first, other in zip(started.metrics, restarted.metrics, strict=True):
        assert measured_metrics(other) == pytest.approx(measured_metrics(first), rel=1e-4)
        assert len(measured_metrics(first)) > 50
    assert restarted.conditions == started.conditions
    assert [run.seed for run in restarted.runs] == [0, 1, 2]


def test_suite_run_number_determines_noise(tmp_path):
    """Whatever ran before on the same processes; another number is other noise."""
    emulation = Emulation("h200", noise="session=1%,run=1%,step=1%,ar=0.6")

    def tpots(session, number):
        session.begin_suite_run(number)
        return Perf(begin_execution(session, "t", "h200")).measure(*CASES["open loop"]).values("tpot_mean")

    with closing(EmulatedSession(Settings(), tmp_path, emulation)) as session:
        first, other, again = (tpots(session, number) for number in (1, 2, 1))
    assert again == first != other


def test_suite_runs_of_one_session_are_first_executions_without_run_files(tmp_path):
    """Else each suite run would write and keep all suite runs before it."""
    test = SuiteTest("t", lambda execution: Perf(execution).measure(*CASES["drafts"], runs=1))
    with closing(EmulatedSession(Settings(), tmp_path, Emulation("h200", noise=""))) as session:
        for number in (1, 2):
            session.begin_suite_run(number)
            outcome = outcome_of(test, session, "h200")
            (measurement,) = outcome.measurements
            assert outcome.only_compared().measurements == ()
            assert [run.execution for run in measurement.runs] == [1]
        assert session.executions("t") == []
        assert not list((session.run_dir / "tests").rglob("*"))


def with_noise(baseline, rng, sd):
    """The baseline with noise on each value of its sessions."""
    def noisy(session):
        metrics = {name: tuple(value and value * math.exp(rng.gauss(0, sd)) for value in values)
                   for name, values in session.metrics.items()}
        return replace(session, metrics=metrics)

    return replace(baseline, measurements={
        name: replace(measurement, sessions=tuple(map(noisy, measurement.sessions)))
        for name, measurement in baseline.measurements.items()
    })


def test_drawn_baselines_give_the_noise_of_tests_without_baseline():
    """The gate on steadiness and the widths of claims follow this noise."""
    new = ("suites/test_new.py::test_new[h200]", "emulated-h200")
    rng = random.Random(0)
    with closing(EmulatedSession(Settings(), ROOT, Emulation("h200"))) as session:
        stored = session.baselines.run_sd(*new)
        drawn = session.drawn_baselines.drawn
        session.drawn_baselines.draw({path: with_noise(baseline, rng, 0.05) for path, baseline in drawn.items()})
        assert stored == pytest.approx(0.006, rel=0.1)
        assert session.baselines.run_sd(*new) > 0.03
        session.drawn_baselines.draw(drawn)
        assert session.baselines.run_sd(*new) == stored


@pytest.fixture
def project(tmp_path):
    (tmp_path / "test_own.py").write_text(SUITE)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return tmp_path


def llmperf(project, *arguments, code=0):
    command = [sys.executable, "-m", "pytest_llmperf", "calibrate", *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def with_baseline(project):
    command = [sys.executable, "-m", "pytest", "-q", "test_own.py", "--emulate", "h200", "--update-baselines-new"]
    subprocess.run(command, cwd=project, capture_output=True, timeout=300, check=True)


def in_git(project):
    """A git repository that contains the calibration page. A change of this page must not start a new calibration."""
    (project / "page.md").write_text("# An old page\n")
    given = [["init", "-q"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "A suite"]]
    for arguments in given:
        subprocess.run(["git", *arguments], cwd=project, check=True)


@pytest.mark.thorough
def test_calibration_of_user_suite_reports_requested_suite_runs(project):
    with_baseline(project)
    in_git(project)
    given = ("test_own.py", "--emulate", "h200", "--faults", "0", "--limits", "2", "--out", "page.md")
    output = llmperf(project, *given, "--suite-runs", "20").stdout
    assert (project / "page.md").read_text() == output.removesuffix("\n")
    assert "| A/A | 0 of 20: 0 %" in output
    rows = [json.loads(line) for line in (project / "page.md.jsonl").read_text().splitlines()[1:]]
    runs = {(row["experiment"], row["number"]) for row in rows}
    of_slow_servers = len(slow_servers.BEYOND) * sum(len(case.requests) for case in slow_servers.CASES)
    assert len(runs) == len(rows) == 9 + 2 + 2 + 20 + of_slow_servers
    more = llmperf(project, *given, "--suite-runs", "30")
    assert "A/A: 10 of 10 suite runs" in more.stderr
    assert "| A/A | 0 of 30: 0 %" in more.stdout
    # Fewer than the journal has are those that were asked for, and trials of a limit count once.
    fewer = llmperf(project, *given, "--suite-runs", "10", "--limits", "3").stdout
    assert "| A/A | 0 of 10: 0 %" in fewer
    assert " of 3: " in fewer
    assert " of 5: " not in fewer
    (stored,) = (project / "baselines" / "emulated-h200").rglob("test_*.json")
    stored_rows = stored.read_text()
    stored.write_text(re.sub(r'"date": "[^"]*"', '"date": "2001-01-01"', stored_rows))
    assert "another calibration" in llmperf(project, *given, "--suite-runs", "30", code=2).stderr
    stored.write_text(stored_rows)
    (project / "test_own.py").write_text(SUITE.replace("test_answers", "test_other"))
    assert "another calibration" in llmperf(project, *given, code=2).stderr


def test_calibration_of_changed_suite_is_refused(project):
    """Without git, and with uncommitted changes, the commit cannot distinguish the two versions of the suite."""
    with_baseline(project)
    given = (*SHORT, "--suite-runs", "10", "--out", "page.md")
    llmperf(project, *given)
    llmperf(project, *given)
    (project / "test_own.py").write_text(SUITE + "# changed\n")
    assert "another calibration" in llmperf(project, *given, code=2).stderr


def test_comparisons_that_cannot_alarm_are_not_counted_as_quiet(project):
    with_baseline(project)
    (project / "test_own.py").write_text(SUITE.replace("requests=", "requests=1 + "))
    said = llmperf(project, *SHORT, "--suite-runs", "10", code=2).stderr
    # Whichever process is first.
    assert re.search(r"INCOMPARABLE in suite run 10\d\d: ", said)
    assert "--update-baselines" in said


def test_fault_without_matching_test_is_omitted_from_calibration(project):
    with_baseline(project)
    done = llmperf(project, *SHORT[:3], "--faults", "1", "--limits", "0", "--suite-runs", "10")
    assert "leak: left out, no test whose id has 'serving.py::test_answers_come_in_time'" in done.stderr
    assert "| A/A | 0 of 10: 0 %" in done.stdout


ANOTHER = """
@pytest.mark.h200
def test_with_a_folder(perf, tmp_path):
    raise RuntimeError
"""


def test_with_pytest_fixtures_is_omitted_from_calibration_and_named(project):
    with_baseline(project)
    (project / "test_own.py").write_text(SUITE + ANOTHER)
    given = ("test_own.py", "--emulate", "h200", "--faults", "0", "--limits", "0", "--suite-runs", "10")
    output = llmperf(project, *given).stdout
    assert "| A/A | 0 of 10: 0 %" in output
    assert "fixtures of their own: `test_own.py::test_with_a_folder`." in output


SHORT = ("test_own.py", "--emulate", "h200", "--faults", "0", "--limits", "0")


def rows_in(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return sorted(rows, key=lambda row: (row["experiment"], row["number"]))


@pytest.mark.thorough
def test_rows_do_not_depend_on_the_number_of_processes(project):
    with_baseline(project)
    for jobs in ("1", "2"):
        llmperf(project, *SHORT, "--suite-runs", "11", "--jobs", jobs, "--out", f"{jobs}.md")
    assert rows_in(project / "1.md.jsonl") == rows_in(project / "2.md.jsonl") != []
    assert "--jobs 0" in llmperf(project, *SHORT, "--jobs", "0", code=2).stderr


def hear_sigint():
    """What a shell starts in the background inherits a SIGINT that is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [
    signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough),
])
def test_interrupted_calibration_leaves_no_process_and_resumes_from_journal(project, number):
    with_baseline(project)
    given = (*SHORT, "--suite-runs", "5000", "--jobs", "2", "--out", "page.md")
    command = [sys.executable, "-m", "pytest_llmperf", "calibrate", *given]
    journal = project / "page.md.jsonl"
    with subprocess.Popen(
        command, cwd=project, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=hear_sigint,  # noqa: PLW1509
    ) as running:  # fmt: skip
        while running.poll() is None and (not journal.exists() or len(journal.read_text().splitlines()) < 5):
            time.sleep(0.05)
        family = [stat.identity for stat in descendants(running.pid)]
        running.send_signal(number)
        assert running.wait(30) == 130
        assert "interrupted" in running.stderr.read()
    assert len(family) >= 4  # two processes and their emulators
    deadline = time.monotonic() + 10
    while any(map(is_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [process for process in family if is_alive(process)]
    earlier_rows = rows_in(journal)
    llmperf(project, *SHORT, "--suite-runs", "10", "--out", "page.md")
    assert [row for row in rows_in(journal) if row in earlier_rows] == earlier_rows
    assert "| A/A | 0 of " in (project / "page.md").read_text()


@pytest.mark.parametrize(("change", "said"), [
    (("def test_answers(engine, perf)", "def test_answers(engine, perf, tmp_path)"), "fixtures of its own"),
    (("mark.h200", "mark.l4"), "Nothing below test_own.py can be calibrated on an emulated h200"),
    (("import pytest\n", "import pytest, no_such_module\n"), "no_such_module"),
    (("", ""), "--update-baselines-new"),
])
def test_suite_that_cannot_be_calibrated_is_refused_with_reason(project, change, said):
    (project / "test_own.py").write_text(SUITE.replace(*change) if change[0] else SUITE)
    assert said in llmperf(project, "test_own.py", "--emulate", "h200", code=2).stderr
    assert not (project / ".llmperf" / "calibration.md").exists()


@pytest.mark.thorough
def test_noise_of_host_is_reported_with_warning_about_narrow_margins(project):
    output = llmperf(project, "test_own.py", "--sessions", "3", "--pytest", "--emulate h200 -p no:cacheprovider").stdout
    lines = {line.split(" | ")[1]: line for line in output.splitlines() if line.startswith("| test_own")}
    assert set(lines) == {"ttft_p50", "tpot_mean", "output_throughput"}
    assert "(4 df)" in lines["tpot_mean"]
    assert "WARNING: test_own.py::test_answers: ttft_p50 tolerates 5.0%" in output
    assert "WARNING: test_own.py::test_answers: tpot_mean" not in output


def test_calibration_from_one_session_is_refused(project):
    assert "at least 2" in llmperf(project, "test_own.py", "--sessions", "1", code=2).stderr
