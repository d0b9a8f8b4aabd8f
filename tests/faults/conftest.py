"""Suites on the stub engine, run by a real pytest that the test may interrupt."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_llmperf.session import warm_up
from pytest_llmperf.testing.waiting import until

HUNG_S = 150  # below the limit of a test, 300 s
ENGINE = Path(__file__).parents[1] / "stubs" / "engine.py"
STUBBED = """
from pytest_llmperf import closed, random_tokens, vllm
from pytest_llmperf.session import warm_up

warm_up.AGREE = 1000.0  # a busy machine is never steady

FEW = random_tokens(input=8, output=20, arrivals=closed(2), requests=12)

def stub(mode="", **env):
    return vllm("tiny", env={"STUB_MODE": mode, **env})
"""
SETTINGS = """
ready_timeout_s = 120
stop_grace_s = 1
send_delay_p99_limit_ms = 5000   # these tests share their cores
stamp_error_p99_limit_ms = 5000
clock_gap_limit_ms = 60000
coalesced_limit = 1
"""


class Suite:
    """A suite in a folder of its own, with its own lock of the machine."""

    def __init__(self, pytester):
        self.pytester = pytester
        self.folder = Path(pytester.path)
        self.note = self.folder / "note"
        pytester.makepyfile(stubbed=STUBBED)
        self.settings()

    def settings(self, **changed):
        lines = [line for line in SETTINGS.splitlines() if line.split(" ")[0] not in changed]
        lines += [f"{name} = {value}" for name, value in changed.items()]
        (self.folder / "llmperf.toml").write_text("\n".join(lines))

    def write(self, text):
        self.pytester.makepyfile(test_it=f"import time, os, signal, pytest\nfrom stubbed import *\n\n{text}")

    def arguments(self, *args):
        engine = f"--llmperf-engine=vllm={sys.executable} {ENGINE}"
        return [engine, "--junitxml=junit.xml", "-p", "no:cacheprovider", *args]

    def run(self, text, *args):
        """Run to the end; gives (result, JUnit root)."""
        self.write(text)
        hung = ("-o", f"faulthandler_timeout={HUNG_S - 20}")
        try:
            result = self.pytester.runpytest_subprocess(*hung, *self.arguments(*args), timeout=HUNG_S)
        except self.pytester.TimeoutExpired:
            output = "".join((self.folder / name).read_text() for name in ("stdout", "stderr"))
            pytest.fail(f"pytest runs for over {HUNG_S} s. Its output, with the stacks of its threads:\n{output}")
        return result, self.junit()

    def start(self, text, *args):
        """Start in a process group of its own, as a terminal would."""
        self.write(text)
        command = [sys.executable, "-m", "pytest", *self.arguments(*args)]
        with (self.folder / "output").open("wb") as output:
            return subprocess.Popen(
                command, cwd=self.folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL, process_group=0,
                # A shell starts what runs in the background with SIGINT ignored, and that is inherited.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
            )

    until = staticmethod(until)

    def output(self):
        return (self.folder / "output").read_text()

    def junit(self):
        path = self.folder / "junit.xml"
        return ET.parse(path).getroot() if path.exists() else None

    def run_files(self):
        """The run folder's files, by test name; each must be whole."""
        files = self.folder.glob(".llmperf/runs/*/tests/*.json")
        run_files = [json.loads(path.read_text()) for path in files]
        return {entry["test"].split("::")[1]: entry for entry in run_files}

    def living(self):
        """Processes that came from this suite's folder: they share its TMPDIR."""
        mark = f"TMPDIR={self.folder}\0".encode()
        processes = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes():
                    processes[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return {pid: command for pid, command in processes.items() if pid != os.getpid() and command}

    def servers(self):
        """Pids of the stub servers that run."""
        return [pid for pid, command in self.living().items() if str(ENGINE) in command.split(" ")]

    def nothing_left(self):
        """Every process of the suite ends."""
        deadline_s = time.monotonic() + 60
        while (living := self.living()) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert not living

    def teardowns_left_nothing(self):
        """At the end of pytest every server has been stopped, so that its watchdog had nothing left to do."""
        logs = list(self.folder.glob(".llmperf/runs/**/server.log"))
        assert logs
        assert [log for log in logs if not log.with_name("reaped.json").exists()] == []
        self.nothing_left()


@pytest.fixture(autouse=True)
def steady_at_once(monkeypatch):
    """A busy machine is never steady."""
    monkeypatch.setattr(warm_up, "AGREE", 1000.0)


@pytest.fixture
def suite(pytester, monkeypatch):
    monkeypatch.delenv("CI", raising=False)  # a missing baseline fails there: what a test sees is the same at a desk
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    monkeypatch.setenv("STUB_NOTE", str(Path(pytester.path, "note")))
    made = Suite(pytester)
    yield made
    for pid in made.living():
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
