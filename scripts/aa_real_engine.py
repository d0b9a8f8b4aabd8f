"""Measure false alarms and misses on real vLLM on this machine's CPU: A/A sessions, and a server with 10 % fewer
cycles.

    make aa-cpu            # an hour on two quiet cores

First part, against a stored baseline: each session starts a new server, compares with the baseline, and is stored.
Second part, side by side: runs of the two variants alternate on one server, so the machine's drift affects both sides.
To take cycles, the script stops the server for 10 ms of each 100 ms, which no flag and no fingerprint shows.

Exit code 1: a FAIL without a change, or a side-by-side comparison that missed the fewer cycles. INCONCLUSIVE is no
error. The slower server may pass against the baseline if the speed of the machine itself varies by more than 10 %.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_llmperf.report.junit import read_release
from pytest_llmperf.results.sentences import estimate_text

SUITE = '''
import os, signal, threading, time
from contextlib import contextmanager

import pytest
from pytest_llmperf import closed, random_tokens, vllm

pytestmark = [pytest.mark.cpu, pytest.mark.engine(vllm("tiny", max_model_len=2048))]
PERIOD_S = 0.1  # each stop costs what it takes to get going again: few long ones cost little more than their time


@contextmanager
def fewer_cycles(engine, share):
    """Stop the server's processes for that share of the time."""
    over, pids = threading.Event(), tuple(engine.pids())

    def send(number):
        for pid in pids:
            os.kill(pid, number)

    def hold():
        while not over.wait(PERIOD_S * (1 - share)):
            send(signal.SIGSTOP)
            time.sleep(PERIOD_S * share)
            send(signal.SIGCONT)

    thread = threading.Thread(target=hold)
    if share:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if share:
            thread.join()


def test_against_the_baseline(engine, perf):
    answers = random_tokens(input=128, output=96, arrivals=closed(1), requests=20)
    with fewer_cycles(engine, float(os.environ.get("AA_SLOWER", "0"))):
        run = perf.measure(engine, answers)
        perf.check(run, "error_rate == 0")
        perf.compare_with_baseline(run)


@pytest.mark.parametrize("attempt", range(int(os.environ.get("AA_ATTEMPTS", "0"))))
def test_side_by_side(engine, perf, attempt):
    """Short runs and many: the finer the turns, the more of the machine's drift is on both sides."""
    answers = random_tokens(input=128, output=96, arrivals=closed(1), requests=3)
    share = float(os.environ.get("AA_SLOWER", "0"))
    whole = perf.measure(engine, answers, runs=1)
    with fewer_cycles(engine, share):
        held = perf.measure(engine, answers, runs=1)
    for turn in range(1, int(os.environ["AA_PAIRS"])):
        if turn % 2 == 0:
            whole = perf.extend(whole)
        with fewer_cycles(engine, share):
            held = perf.extend(held)
        if turn % 2:
            whole = perf.extend(whole)
    perf.compare("tpot_mean(held) / tpot_mean(whole) <= 1.02", held=held, whole=whole)
'''


def session(project: Path, name: str, *options: str, **env: str) -> list[str]:
    """One pytest session; what each judgement came to. Prints that and the exit code."""
    junit = project / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "cpu", "-rs",
               f"--junitxml={junit}", "--llmperf-missing-baseline=skip", *options]
    done = subprocess.run(command, cwd=project, env=os.environ | env, capture_output=True, text=True, check=False)
    (project / f"{name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    checks = [f"{check.verdict.value}: {check.subject}: {estimate_text(check)}"
              for test in read_release(junit) for check in test.checks]
    judged_lines = [check for check in checks if ": baseline" in check or "tpot_mean(held)" in check]
    print("\n    ".join([f"{name}: exit code {done.returncode}", *judged_lines]), flush=True)
    return judged_lines


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path, help="the environment of vLLM for CPUs, e.g. .engines/vllm-cpu")
    parser.add_argument("--sessions", type=int, default=11, help="the first one creates the baseline; 0: none")
    parser.add_argument("--attempts", type=int, default=10, help="side by side, with nothing changed; 0: none")
    parser.add_argument("--slower", type=float, default=0.1, help="share of the cycles that is taken (default: 0.1)")
    parser.add_argument("--pairs", type=int, default=30, help="runs a side, side by side (default: 30)")
    parser.add_argument("--project", type=Path, default=Path(".llmperf/aa"), help="a folder of its own")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, measure: Callable[..., list[str]] = session) -> int:
    options = arguments_of(argv)
    project = options.project.absolute()
    project.mkdir(parents=True)
    (project / "test_aa.py").write_text(SUITE, encoding="utf-8")
    (project / "pyproject.toml").write_text('[tool.pytest.ini_options]\n', encoding="utf-8")
    engine = f"--llmperf-engine=vllm={options.engine.absolute()}"
    slower, pairs = f"{options.slower}", f"{options.pairs}"
    unchanged: dict[str, list[str]] = {}
    detected = True
    for number in range(options.sessions):
        name = f"A-{number:02}"
        unchanged[name] = measure(project, name, engine, "-k", "baseline", "--update-baselines")
    if options.sessions:
        measure(project, "slower", engine, "-k", "baseline", AA_SLOWER=slower)
    if options.attempts:
        beside = (engine, "-k", "side_by_side")
        unchanged["beside"] = measure(project, "beside", *beside, AA_PAIRS=pairs, AA_ATTEMPTS=f"{options.attempts}")
        detected = any(map(failed, measure(project, "beside-slower", *beside, AA_PAIRS=pairs, AA_ATTEMPTS="1",
                                        AA_SLOWER=slower)))
    wrong = [*mistakes(unchanged), *([] if detected else ["beside-slower: not found"])]
    print("\n".join(wrong))
    return int(bool(wrong))


def mistakes(unchanged: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Alarms of sessions in which nothing was changed, and sessions that judged nothing; the first has no baseline."""
    for name, judged_lines in unchanged.items():
        yield from (f"{name}: a false alarm: {line}" for line in judged_lines if line.startswith(("FAIL:", "ERROR:")))
        if not judged_lines and name != "A-00":
            yield f"{name}: judged nothing"


def failed(check: str) -> bool:
    return check.startswith("FAIL:")


if __name__ == "__main__":
    sys.exit(main())
