"""What the plugin must not do: start things when only looking, disturb runs without it, leave a SIGTERM unheard."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.testing.waiting import until

SUITE = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

@pytest.mark.engine(vllm("tiny"))
def test_x(engine, perf):
    run = perf.measure(engine, random_tokens(input=8, output=8, arrivals=closed(1), requests=6))
    perf.check(run, "error_rate == 0")
"""


@pytest.mark.parametrize("args", [("--help",), ("--collect-only",), ("--version",)])
def test_help_and_collection_start_no_server_and_write_no_file(pytester, args):
    pytester.makepyfile(SUITE)
    earlier_files = {path.name for path in pytester.path.iterdir()}
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:benchmark", *args)
    # what pytester itself leaves
    pytest_files = {"__pycache__", "stdout", "stderr"} | {path.name for path in pytester.path.glob("runpytest-*")}
    assert {path.name for path in pytester.path.iterdir()} - pytest_files == earlier_files


def test_heavy_imports_stay_away_from_runs_that_do_not_measure(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_x():
            heavy = {"numpy", "pandas", "scipy", "httpx", "uvloop", "httptools", "asyncio", "pynvml"} & set(sys.modules)
            ours = {name for name in sys.modules if name.startswith("pytest_llmperf") and "plugin" not in name}
            assert not heavy
            assert ours <= {f"pytest_llmperf{part}" for part in ("", ".doors", ".kinds", ".version")}
        """
    )
    others = ("xdist", "xdist.looponfail", "hypothesispytest", "anyio", "benchmark")
    disabled = [arg for name in others for arg in ("-p", f"no:{name}")]
    pytester.runpytest_subprocess(*disabled).assert_outcomes(passed=1)


@pytest.mark.emulated
def test_the_emulator_needs_neither_posix_modules_nor_gpu_libraries(pytester):
    """As on Windows: importing them fails."""
    pytester.makeconftest(
        """
        import sys

        for name in ("fcntl", "pwd", "resource", "uvloop", "pynvml"):
            sys.modules[name] = None
        """
    )
    pytester.makepyfile(SUITE)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--emulate", "h200").assert_outcomes(passed=1)


def test_sigterm_runs_the_teardowns(pytester):
    pytester.makepyfile(
        """
        import time, pytest
        from pathlib import Path

        @pytest.fixture
        def resource():
            yield
            Path("torn-down").touch()

        def test_x(resource, perf):
            Path("started").touch()
            time.sleep(60)
        """
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    process = subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.DEVNULL)
    until(Path(pytester.path, "started").exists)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 2
    assert Path(pytester.path, "torn-down").exists()


def test_a_wrong_setting_is_a_usage_error_that_names_file_and_key(pytester):
    pytester.makepyfile(SUITE)
    Path(pytester.path, "llmperf.toml").write_text('ready_timeout = 3\nstop_grace_s = "long"\n')
    result = pytester.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert "llmperf.toml" in text
    assert "ready_timeout: unknown. Did you mean ready_timeout_s?" in text
    assert "stop_grace_s = 'long': must be a number" in text
