"""Mutated, special and huge files: each command ends within seconds, with a sentence and in little memory.

`LLMPERF_MUTATIONS=2000` with pytest tries so many mutations.
"""

import gzip
import json
import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.cli import main
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.results.check import Stated
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.testing.records import make_record
from pytest_llmperf.workload import closed, recorded, sharegpt, trace

MUTATIONS = int(os.environ.get("LLMPERF_MUTATIONS", "40"))
LIMIT_CPU_S = 10
GROWTH_KIB = 500 * 1024
RUN, BASELINES = ".llmperf/runs/20260101T000000Z-aaaaaa", "baselines"
TEST = "suites/test_it.py::test_it"
COMMANDS = [
    ["show", RUN], ["show", RUN, "test_it"], ["diff", RUN, RUN, "--all"], ["comment", RUN],
    ["comment", RUN, "--against", RUN], ["comment", RUN, "--against", "junit.xml"],
    ["acknowledge", "test_it", "itl_p99", "--reason", "r", "--until", "2999-01-01"], ["report", RUN, "--out", "page"],
    *(["export", RUN, "--format", form, "--out", f"out-{form}"] for form in ("pytest-benchmark", "vllm", "csv")),
    ["baselines", "take", RUN, "--dry-run"], ["baselines", "list"], ["baselines", "show", "test_it"],
    ["history", RUN], ["history", BASELINES, "--html", "page"], ["diff", "--baselines", BASELINES, BASELINES],
]
VALUES = [
    None, True, -1, 0, 1.5, "", "\0", "../../x", "/dev/zero", "\x1b[31m\u202e", "\ud800",
    [], {}, [None], [[]], {"a": {}},
    2**63, 10**400, 1e308, 1e-308, -1e30, "x" * 5000, [0] * 5000, 300_000_000, -(2**62), "NaN", "=1+1",
]
RAW = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"[" * 3000, b"9" * 5000, b'{"a":1,"a":2}', b"\xff\xfe", b"\r\n",
       b"\x00", b"<![CDATA[", b"&a;", b'"']


def run_of(seed):
    records = [make_record(i, intended_ms=100 * i, ttft_ms=40 + i, itl_ms=[8, 9, 8, 8]) for i in range(12)]
    return Run(seed, 1, tuple(records), {"prompt_tokens": 800.0}, started_at="2026-01-02T03:04:05+00:00")


def write_run(folder):
    runs = tuple(map(run_of, range(3)))
    measured = Measurement(
        "vllm('llama-3.1-8b')", "random_tokens(input=8)",
        {"hardware": "emulated h200", "engine": "vllm", "flags": "{}", "formulas": "{}"}, runs,
        metrics=tuple(measure(run.records, run.counters) for run in runs), baseline="",
        primaries=("itl_p99", "ttft_p50"),
    )
    check = CheckResult("itl_p99 <= 60ms", Verdict.FAIL, "itl_p99", Unit.MS, Comparison.AT_MOST, 60.0, 64.0,
                        Interval(62.0, 66.0, 0.995), cause=Stated("slow"))
    write_test(folder, TEST, [measured], [check])
    session = {"schema": 1, "session": folder.name, "date": "2026-01-01", "commit": "abc", "dirty": False, "host": "h"}
    (folder / "session.json").write_text(json.dumps(session))
    (folder / "servers/01-vllm-1").mkdir(parents=True)
    (folder / "servers/01-vllm-1/server.log").write_text("INFO up\n")
    (folder / "servers/01-vllm-1/command").write_text("vllm serve\n")


def write_traces(folder):
    line = {"chat_id": 1, "parent_chat_id": -1, "input_length": 40, "output_length": 8, "type": "text", "turn": 1}
    rows = [{**line, "chat_id": i, "parent_chat_id": i - 1, "timestamp": 2.5 * i, "hash_ids": [1, 2, i]}
            for i in range(6)]
    (folder / "bailian.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                      + "".join(f"2023-11-16 18:15:4{i}.68,40,8\n" for i in range(6)))
    turns = [{"from": "human", "value": "a question " * 5}, {"from": "gpt", "value": "an answer " * 9}]
    (folder / "talk.json").write_text(json.dumps([{"conversations": turns}] * 6))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    (folder / "pytest.ini").write_text("[pytest]\n")
    write_run(folder / RUN)
    here = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["baselines", "take", RUN, "--accept", "a first one"]) == 0
    finally:
        os.chdir(here)
    (run_file,) = (folder / RUN / "tests").glob("*.json")
    properties = {"llmperf.test": TEST, "llmperf.verdict": "FAIL", "llmperf.run_file": str(run_file)}
    inner = "".join(f'<property name="{name}" value="{value}"/>' for name, value in properties.items())
    (folder / "junit.xml").write_text(
        f'<testsuites><testsuite name="p"><testcase classname="suites.test_it" name="test_it"><properties>{inner}'
        '</properties><failure message="llmperf slow"/></testcase></testsuite></testsuites>')
    write_traces(folder)
    return folder


@pytest.fixture
def project(original, tmp_path, monkeypatch):
    shutil.copytree(original, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def tried() -> dict[str, Callable[[], object]]:
    def traced(path, **options):
        return lambda: trace(**{"path": path, "arrivals": recorded(), "requests": 6} | options).requests()

    return {
        **{" ".join(command): (lambda command=command: main(command)) for command in COMMANDS},
        "bailian": traced("bailian.jsonl"),
        "bailian server": traced("bailian.jsonl", reply="server"),
        "azure": traced("azure.csv"),
        "requests": traced(str(next(Path(RUN, "requests").glob("*.gz"), "none"))),
        "sharegpt": lambda: sharegpt(path="talk.json", arrivals=closed(1), requests=6).requests(),
        "anonymise": lambda: main(["trace", "anonymise", "bailian.jsonl", "out.jsonl"]),
        "anonymise talk": lambda: main(["trace", "anonymise", "talk.json", "out.json"]),
    }


def guarded(call, what):
    """The call ends, with or without an LlmperfError, in little CPU time and without growth."""
    def too_long(*_):
        raise TimeoutError(what)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_CPU_S)
    try:
        call()
    except LlmperfError as error:
        if any(len(word) > 300 and "/" not in word for word in str(error).split()):
            pytest.fail(f"{what}: a message of {len(str(error))} characters")
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}"[:500]) from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < GROWTH_KIB, f"{what}: {grown // 1024} MiB"


def mutated(path, rng):
    """Change one value of a JSON file, or some bytes of any file."""
    packed, data = path.suffix == ".gz", path.read_bytes()
    data = gzip.decompress(data) if packed else data
    lines = path.suffix == ".jsonl"
    if (path.suffix == ".json" or packed or lines) and rng.random() < 0.7:
        values = [json.loads(line) for line in data.splitlines()] if lines else json.loads(data)
        change_value(values, rng)
        data = "\n".join(map(json.dumps, values)).encode() if lines else json.dumps(values).encode()
    else:
        at, piece = rng.randrange(len(data) + 1), rng.choice(RAW)
        data = data[:at] + piece + data[at + rng.choice((0, 1, 7, len(data))):]
    path.write_bytes(gzip.compress(data, 1) if packed else data)


def change_value(values, rng):
    while values:
        key = rng.choice(list(values)) if isinstance(values, dict) else rng.randrange(len(values))
        if isinstance(values[key], dict | list) and values[key] and rng.random() < 0.8:
            values = values[key]
        elif rng.random() < 0.2:
            del values[key]
            return
        else:
            values[key] = rng.choice(VALUES)
            return


def targets(project):
    names = [*Path(RUN).rglob("*"), *Path(BASELINES).glob("*/*/*.json"), *map(Path, (
        "junit.xml", "bailian.jsonl", "azure.csv", "talk.json"))]
    return sorted(name for name in names if (project / name).is_file())


def readers(name, calls):
    """The commands that read a file."""
    part = str(name)
    kinds = {"bailian.jsonl": "bailian|anonymise", "azure.csv": "azure", "talk.json": "sharegpt|anonymise talk"}
    chosen = kinds.get(part, "baselines|report" if part.startswith(BASELINES) else "release" if "junit" in part else
                       "|".join(" ".join(command) for command in COMMANDS) + "|requests")
    return {what: call for what, call in calls.items() if any(what.startswith(word) for word in chosen.split("|"))}


def test_readers_of_mutated_files_end_within_time_and_memory_without_traceback(project, capsys):
    failures = []
    for call in tried().values():
        call()  # imports count for none of the mutations
    for seed in range(MUTATIONS):
        rng = Random(seed)
        name = rng.choice(targets(project))
        kept = name.read_bytes()
        mutated(name, rng)
        calls = readers(name, tried())
        for what in rng.sample(sorted(calls), min(3, len(calls))):
            try:
                guarded(calls[what], f"seed {seed}, {name}: {what}")
            except (AssertionError, pytest.fail.Exception) as error:
                failures.append(str(error))
            capsys.readouterr()
        name.write_bytes(kept)
    assert not failures, "\n".join(failures)


def special(path, kind):
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            here = Path.cwd()
            os.chdir(path.parent)
            bound.bind(path.name)
            os.chdir(here)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**40)
    elif kind == "outside":
        path.symlink_to("/etc/hostname")
    else:
        path.symlink_to(kind)


@pytest.mark.parametrize("kind", ["FIFO", "folder", "loop", "socket", "sparse", "outside", "/dev/zero", "/dev/tty"])
def test_readers_of_special_files_end_within_time_and_memory_without_traceback(project, capsys, kind):
    failures = []
    for name in targets(project):
        kept = name.read_bytes()
        special(name, kind)
        for what, call in readers(name, tried()).items():
            try:
                guarded(call, f"{name}: {what}")
            except (AssertionError, pytest.fail.Exception) as error:
                failures.append(str(error))
        capsys.readouterr()
        name.rmdir() if name.is_dir() and not name.is_symlink() else name.unlink()
        name.write_bytes(kept)
    assert not failures, "\n".join(failures)
