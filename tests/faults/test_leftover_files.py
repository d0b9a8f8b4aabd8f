"""What a killed run leaves on the disk: the next run of this user removes it, and nothing of a run that lives."""

import os
import signal

MEASURES = """
@pytest.mark.engine(stub(STUB_ITL_S="0.05"))
def test_x(engine, perf):
    perf.check(perf.measure(engine, FEW, runs=1000), "error_rate == 0")
"""
SOUND = """
def test_x(perf):
    perf.check(perf.measure(stub(), FEW), "error_rate == 0")
"""


def leftovers(suite):
    """What ends with its run, by name: recordings and lines, locks of ports and endpoints, half-written files."""
    places = (f"llmperf-scratch-{os.getuid()}/*", f"llmperf-*{os.getuid()}/*.lock", ".llmperf/runs/**/.*.tmp")
    return sorted(path.name for place in places for path in suite.folder.glob(place))


def test_next_run_removes_leftovers_of_killed_run(suite):
    killed = suite.start(MEASURES, "-n", "1")
    suite.until(lambda: any(name.startswith("load-") for name in leftovers(suite)) or killed.poll() is not None)
    assert killed.poll() is None, suite.output()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    for pid in suite.living():  # xdist's worker ends by itself, sooner or later
        os.kill(pid, signal.SIGKILL)
    suite.until(lambda: not suite.living())
    kinds = {name.partition("-")[0] for name in leftovers(suite)}
    assert {"load", "lines", "machine.lock"} <= kinds, leftovers(suite)
    temporary = next(suite.folder.glob(".llmperf/runs/*/tests")) / ".report.html.0123abcd.tmp"
    temporary.write_text("half")
    result, _ = suite.run(SOUND)
    assert result.ret == 0
    assert leftovers(suite) == []


def test_recording_of_failed_replay_stays_until_next_run(suite):
    text = """
def test_x(perf):
    import threading
    threading.Thread(target=end_load, daemon=True).start()
    perf.measure(stub(STUB_ITL_S="0.1"), FEW)

def end_load():
    from pathlib import Path
    while True:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                mine = (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid())
                if mine and b"load.worker" in (entry / "cmdline").read_bytes():
                    time.sleep(0.5)
                    os.kill(int(entry.name), signal.SIGKILL)
                    return
            except OSError:
                continue
"""
    result, junit = suite.run(text)
    assert result.ret == 10
    assert "until the next run" in next(junit.iter("error")).text
    assert [name.partition("-")[0] for name in leftovers(suite)] == ["load"]
    result, _ = suite.run(SOUND)
    assert result.ret == 0
    assert leftovers(suite) == []
