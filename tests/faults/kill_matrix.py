"""Seven ways in which a run can end, injected into any parent that holds a server.

A parent is a function from a `Case` to a command. The command must write its own pid to `FOLDER/holder` and start a
server. The server writes `FOLDER/pids/<role>` ("PID STARTTIME") for each of its processes, and then `FOLDER/ready`. The
command holds the server until `FOLDER/finish` appears, and leaves `reaped.json` below `FOLDER/run`. If the server
chooses a port, `FOLDER/port` contains the port. A `detached` process ignores SIGTERM and holds the shared-memory
segment that `FOLDER/segment` names.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pytest_llmperf.process import ports, tree

ROOT = Path(__file__).parents[2]
STUBS = Path(__file__).with_name("stubs")
LIMIT_S = 60.0  # a tenth of it on a quiet machine


class Ending(Enum):
    NORMAL = "normal"
    SIGINT = "sigint"
    SIGTERM = "sigterm"
    SIGKILL = "sigkill"
    TIMEOUT_SIGNAL = "timeout-signal"
    TIMEOUT_THREAD = "timeout-thread"
    WORKER_KILLED = "worker-killed"


@dataclass(frozen=True)
class Case:
    ending: Ending
    folder: Path
    port: int
    timeout_s: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """What was found after the end.

    Args:
        orphans: processes of the server that were alive after the limit.
        took_s: from the end of the holder to the end of the last process.
        unlisted: roles of processes that reaped.json does not name.
        deaf_sigkilled: whether reaped.json says that the grandchild that ignores SIGTERM needed SIGKILL; None if
            there was none.
    """

    orphans: list[tree.Identity]
    took_s: float
    port_free: bool
    unlisted: list[str]
    segment_left: bool
    deaf_sigkilled: bool | None
    report: dict = field(repr=False)
    output: str = ""


Parent = Callable[[Case], tuple[list[str], dict[str, str]]]


def driver(case: Case) -> tuple[list[str], dict[str, str]]:
    """A small script: no pytest between the ending and the supervision."""
    argv = [sys.executable, str(STUBS / "hold_server.py"), str(case.folder), str(case.port)]
    if case.ending in (Ending.TIMEOUT_SIGNAL, Ending.TIMEOUT_THREAD):
        argv += ["--timeout-s", str(case.timeout_s), "--timeout-method", case.ending.value.removeprefix("timeout-")]
    if case.ending is Ending.WORKER_KILLED:
        argv.append("--in-worker")
    return argv, {}


def pytest_run(case: Case) -> tuple[list[str], dict[str, str]]:
    """Real pytest with pytest-timeout and pytest-xdist."""
    argv = [sys.executable, "-m", "pytest", str(STUBS / "hold_in_pytest.py"), "-c", os.devnull, f"--rootdir={STUBS}"]
    argv += ["--import-mode=importlib", "-p", "no:cacheprovider", "-q", "--noconftest"]
    if case.ending in (Ending.TIMEOUT_SIGNAL, Ending.TIMEOUT_THREAD):
        argv += [f"--timeout={case.timeout_s}", f"--timeout-method={case.ending.value.removeprefix('timeout-')}"]
        argv += ["-o", "timeout_func_only=true"]  # from when the server runs
    if case.ending is Ending.WORKER_KILLED:
        argv += ["-n", "1", "--max-worker-restart=0"]
    return argv, {"KILL_MATRIX_FOLDER": str(case.folder), "KILL_MATRIX_PORT": str(case.port)}


def plugin_run(case: Case) -> tuple[list[str], dict[str, str]]:
    """Real pytest with our plugin, whose `engine` fixture starts the stub engine."""
    engine = Path(__file__).parents[1] / "stubs" / "engine.py"
    return plugin_command(case, STUBS / "hold_engine.py", f"{sys.executable} {engine}")


def plugin_command(case: Case, test_file: Path, engine: str) -> tuple[list[str], dict[str, str]]:
    """Our plugin on a test file, with a lock of the machine of its own."""
    models = case.folder.parent / "models"
    (case.folder / "llmperf.toml").write_text(f'stop_grace_s = 0.5\ncache_dir = "{models}"\n')
    argv = [sys.executable, "-m", "pytest", str(test_file), "-c", os.devnull, f"--rootdir={case.folder}"]
    argv += ["--import-mode=importlib", "-p", "no:cacheprovider", "-q", f"--junitxml={case.folder}/junit.xml"]
    argv += ["--noconftest"]  # those of the tests import for seconds
    argv += [f"--llmperf-engine=vllm={engine}", f"--llmperf-runs={case.folder}/run"]
    if case.ending in (Ending.TIMEOUT_SIGNAL, Ending.TIMEOUT_THREAD):
        method = case.ending.value.removeprefix("timeout-")
        argv += [f"--timeout={case.timeout_s}", f"--timeout-method={method}", "-o", "timeout_func_only=true"]
    if case.ending is Ending.WORKER_KILLED:
        argv += ["-n", "1", "--max-worker-restart=0"]
    return argv, {"KILL_MATRIX_FOLDER": str(case.folder), "TMPDIR": str(case.folder)}


def play(parent: Parent, case: Case, ready_limit_s: float = 120.0) -> Outcome:
    """Start the parent, end it as the case says, and look at what is left."""
    with _started(parent, case) as process:
        _wait_for((case.folder / "ready").exists, ready_limit_s, process)
        processes = read_pids(case.folder)
        _inject(case, process)
        ended_s = time.monotonic()
        orphans = wait_gone(list(processes.values()), LIMIT_S)
        took_s = time.monotonic() - ended_s
        _wait_for(lambda: _reports(case), LIMIT_S)
        process.wait(LIMIT_S)
    (path,) = _reports(case)
    report = json.loads(path.read_text())
    listed = {(item["pid"], item["starttime"]): item for item in report["reaped"]}
    deaf = processes.get("detached")
    chosen, segment = case.folder / "port", case.folder / "segment"
    return Outcome(
        orphans=orphans,
        took_s=took_s,
        port_free=ports.who_listens(int(chosen.read_text()) if chosen.exists() else case.port) is None,
        unlisted=[role for role, who in processes.items() if (who.pid, who.starttime) not in listed],
        segment_left=segment.exists() and (Path("/dev/shm") / segment.read_text()).exists(),
        deaf_sigkilled=listed[deaf.pid, deaf.starttime]["sigkill"] if deaf else None,
        report=report,
        output=(case.folder / "parent.log").read_text(),
    )


def _reports(case: Case) -> list[Path]:
    return list((case.folder / "run").rglob("reaped.json"))


def read_pids(folder: Path) -> dict[str, tree.Identity]:
    """Who the stub server's processes are, as they said themselves."""
    files = [path for path in (folder / "pids").iterdir() if path.suffix != ".tmp"]
    return {path.name: tree.Identity(*map(int, path.read_text().split())) for path in files}


def wait_gone(processes: list[tree.Identity], limit_s: float) -> list[tree.Identity]:
    """Those that are still alive after at most `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while (alive := [p for p in processes if tree.is_alive(p)]) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return alive


def hear_sigint() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _started(parent: Parent, case: Case) -> Iterator[subprocess.Popen]:
    argv, env = parent(case)
    pythonpath = os.pathsep.join([str(ROOT), str(STUBS)])
    case.folder.mkdir(parents=True, exist_ok=True)
    with (case.folder / "parent.log").open("wb") as log:
        process = subprocess.Popen(
            argv, env={**os.environ, "PYTHONPATH": pythonpath, **env}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=hear_sigint,  # noqa: PLW1509
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _inject(case: Case, process: subprocess.Popen) -> None:
    match case.ending:
        case Ending.NORMAL:
            (case.folder / "finish").touch()
        case Ending.WORKER_KILLED:
            os.kill(int((case.folder / "holder").read_text()), signal.SIGKILL)
        case Ending.TIMEOUT_SIGNAL | Ending.TIMEOUT_THREAD:
            process.wait(case.timeout_s + LIMIT_S)
        case _:
            process.send_signal(signal.Signals[case.ending.name])


def _wait_for(condition: Callable[[], bool], limit_s: float, process: subprocess.Popen | None = None) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s or (process is not None and process.poll() is not None):
            raise TimeoutError("the parent ended or never came to hold its server")
        time.sleep(0.01)
