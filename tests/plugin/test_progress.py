"""What is seen while a test works: on a terminal, in a log, with and without capturing, under xdist."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pyte
import pytest

# It goes on when what it did has been seen: in pytest's output, which pytester writes to a file, or on the screen.
WORK = """
import os, time
from pathlib import Path
from pytest_llmperf.model.status import Measuring, Starting

def seen(words, name):
    until_s = time.monotonic() + float(os.environ.get("SEEN_LIMIT_S", "60"))
    told = Path("stdout")
    while time.monotonic() < until_s and not Path(name).exists():
        if told.exists() and words in told.read_text():
            return
        time.sleep(0.05)

def test_it(perf):
    print("a word of the test")
    perf._execution.session.notify(Starting("vllm('m')", "Loading weights"))
    seen("starting vllm", "first-seen")
    perf._execution.session.notify(Measuring(1, 1, requests=9, done=4, failed=0, elapsed_s=2.0, ttft_ms=45.0))
    seen("4 of 9 answered", "second-seen")
    give(perf, "FAIL")
"""
STARTING = "llmperf: *test_it.py::test_it: starting vllm('m'), * s: Loading weights"
RUNNING = "llmperf: *test_it.py::test_it: run 1 of 1: 4 of 9 answered, TTFT 45 ms, 2 s"


def captured(result):
    return result.stdout.str().partition("Captured stdout call")[2]


@pytest.mark.parametrize("capture", ["fd", "sys", "no"])
def test_progress_lines_are_printed_under_every_capture_mode_and_not_captured(run, capture):
    result, _ = run(WORK, f"--capture={capture}")
    result.stdout.fnmatch_lines([STARTING, RUNNING])
    assert "starting" not in captured(result)
    assert ("a word of the test" in captured(result)) == (capture != "no")


def test_workers_of_xdist_are_shown_by_the_controller(run):
    result, _ = run(WORK, "-n", "1")
    result.stdout.fnmatch_lines([STARTING.replace("llmperf: ", "llmperf: [[]gw0[]] "), "*4 of 9 answered*"])


@pytest.mark.parametrize("options", [("-q",), ("-qq",), ("-p", "no:terminal")])
def test_quiet_options_hide_progress(run, monkeypatch, options):
    monkeypatch.setenv("SEEN_LIMIT_S", "1.7")
    result, _ = run(WORK, *options)
    assert result.ret == 1
    assert "starting vllm" not in result.stdout.str()
    assert "4 of 9 answered" not in result.stdout.str()


def test_session_without_performance_tests_shows_and_imports_no_progress(run):
    text = "def test_it():\n    import sys\n    assert 'rich' not in sys.modules\n"
    result, _ = run(text, "-n", "1")
    result.assert_outcomes(passed=1)
    assert "llmperf" not in result.stdout.str().partition("collected")[2]


class Screen:
    """pytest on a terminal of its own."""

    def __init__(self, folder, *options):
        self._folder = folder
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, 100, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm"}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        self.process = subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
                                        env=environment)
        os.close(theirs)
        self._pty = ours
        self._screen = pyte.Screen(100, 50)
        self._stream = pyte.ByteStream(self._screen)

    def lines(self):
        """What is seen now."""
        while select.select([self._pty], [], [], 0.1)[0]:
            try:
                data = os.read(self._pty, 65536)
            except OSError:  # the other end is closed
                break
            self._stream.feed(data)
        return [line.rstrip() for line in self._screen.display]

    def until(self, pattern):
        """The lines as soon as one of them matches."""
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            lines = self.lines()
            if any(re.search(pattern, line) for line in lines):
                return lines
        raise AssertionError(f"never seen: {pattern}\n" + "\n".join(self.lines()))

    def go_on(self, name):
        """The test has waited for that."""
        (self._folder / name).touch()

    def end(self):
        self.until(r"= .* in [\d.]+s")
        self.process.wait(60)
        lines = self.lines()
        os.close(self._pty)
        return [line for line in lines if line]


@pytest.fixture
def screen(pytester, run, monkeypatch):
    def screen(*options):
        run(WORK.replace("FAIL", "PASS"), "--collect-only")  # writes the files
        return Screen(pytester.path, *options)

    return screen


def test_terminal_progress_is_live_and_erased_at_end(screen):
    shown = screen()
    lines = shown.until("starting vllm")
    assert any("Loading weights" in line for line in lines)
    shown.go_on("first-seen")
    lines = shown.until("run 1 of 1")
    assert any("4 of 9 answered · TTFT 45 ms" in line for line in lines)
    assert not any("starting" in line for line in lines)  # replaced, not repeated
    shown.go_on("second-seen")
    ended = shown.end()
    assert any(re.fullmatch(r"test_it\.py \. +\[100%\]", line) for line in ended)
    assert not any("run 1 of 1" in line for line in ended)


def test_uncaptured_output_shows_progress_as_lines(screen):
    shown = screen("-s")
    shown.until("starting vllm")
    shown.go_on("first-seen")
    shown.until("4 of 9 answered")
    shown.go_on("second-seen")
    text = "\n".join(shown.end())
    assert "a word of the test" in text
    assert "llmperf: test_it.py::test_it: run 1 of 1: 4 of 9 answered" in text


def test_xdist_session_leaves_no_open_file(pytester):
    """Python would warn, and projects that make errors of warnings would be red."""
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("-n", "1", "-W", "error")
    assert result.ret == 0
    assert "unclosed" not in result.stderr.str()
