"""Faults 7 and 80: xdist workers take turns at the machine, and one that is killed leaves its turn to the others."""

import os
import signal

import pytest

# A server that finds another one running exits with "two servers at once".
SUITE = """
NAMES = "abc"

@pytest.mark.parametrize("name", NAMES)
@pytest.mark.engine(stub("", STUB_ALONE={alone!r}))
def test_one(engine, perf, name):
    perf.check(perf.measure(engine, FEW, runs=1), "error_rate == 0")

@pytest.mark.parametrize("name", NAMES)
@pytest.mark.engine(stub("", STUB_ALONE={alone!r}, OTHER="1"))
def test_two(engine, perf, name):
    perf.check(perf.measure(engine, FEW, runs=1), "error_rate == 0")
"""


def suite_text(suite):
    return SUITE.format(alone=str(suite.folder / "alone"))


def test_without_xdist_each_spec_starts_once(suite):
    result, _ = suite.run(suite_text(suite))
    result.assert_outcomes(passed=6)
    assert len(list(suite.folder.glob(".llmperf/runs/*/servers/*"))) == 2


@pytest.mark.parametrize("dist", [
    "load", pytest.param("worksteal", marks=pytest.mark.thorough),
    pytest.param("loadscope", marks=pytest.mark.thorough),
])
def test_xdist_workers_share_machine_in_sequence(suite, dist):
    """Fault 80. Nobody waits for ever: a worker keeps the machine until it is told that nothing is left to do."""
    result, junit = suite.run(suite_text(suite), "-n2", f"--dist={dist}", "--timeout=140")
    result.assert_outcomes(passed=6)
    assert result.ret == 0
    assert len(list(junit.iter("testcase"))) == 6
    assert len(suite.run_files()) == 6
    suite.teardowns_left_nothing()


KILLED = """
@pytest.mark.parametrize("number", range(4))
@pytest.mark.engine(stub("deaf", STUB_ALONE={alone!r}))
def test_x(engine, perf, number):
    if number == 0:
        open("worker", "w").write(str(os.getpid()))
        time.sleep(60)
    perf.check(perf.measure(engine, FEW, runs=1), "error_rate == 0")
"""


def test_a_killed_worker_leaves_the_machine_to_the_others(suite):
    """Fault 7: its test is reported as crashed, its server is gone before the next one starts, the others pass."""
    suite.settings(stop_grace_s=3)
    process = suite.start(KILLED.format(alone=str(suite.folder / "alone")), "-n2")
    worker = suite.folder / "worker"
    suite.until(lambda: worker.exists() and worker.read_text())
    os.kill(int(worker.read_text()), signal.SIGKILL)
    assert process.wait(60) == 1, suite.output()
    suite.nothing_left()
    assert "crashed while running" in suite.output()
    assert "1 failed, 3 passed" in suite.output()
    assert all(entry["complete"] for entry in suite.run_files().values())
    cases = {case.get("name"): [child.tag for child in case] for case in suite.junit().iter("testcase")}
    assert [name for name, tags in cases.items() if "failure" in tags or "error" in tags] == ["test_x[0]"]
