"""A parent that starts the stub server under supervision and holds it until FOLDER/finish appears.

Ends in the way it is told, as a pytest run would: a signal handler that raises, a thread that calls `os._exit`,
or a worker process that somebody kills.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.supervisor import Supervised

STUB = Path(__file__).with_name("stub_server.py")


@contextmanager
def held(folder: Path, port: int, grace_s: float) -> Iterator[None]:
    """The stub server, once it and all its processes run."""
    (folder / "holder").write_text(str(os.getpid()))
    launch = Launch(
        argv=(sys.executable, str(STUB), str(folder), "--port", str(port), "--with", "child", "--with", "detached"),
        env=dict(os.environ),
        cwd=folder,
        run_dir=folder / "run",
        grace_s=grace_s,
        abandoned_grace_s=grace_s,
    )
    with Supervised.start(launch) as server:
        (folder / "watchdog").write_text(str(server._watchdog.pid))
        wait_for(folder / "ready")
        yield


def wait_for(path: Path) -> None:
    """A minute at most: whoever waits for the end of this process looks at what is left of it."""
    for _ in range(1200):
        if path.exists():
            return
        time.sleep(0.05)


def time_out(*_: object) -> None:
    raise TimeoutError("timeout by signal")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--grace-s", type=float, default=0.5)
    parser.add_argument("--timeout-s", type=float)
    parser.add_argument("--timeout-method", choices=["signal", "thread"], default="signal")
    parser.add_argument("--in-worker", action="store_true")
    options = parser.parse_args()
    if options.in_worker:
        worker = [sys.executable, __file__, str(options.folder), str(options.port), "--grace-s", str(options.grace_s)]
        sys.exit(min(1, abs(subprocess.run(worker, check=False).returncode)))
    with held(options.folder, options.port, options.grace_s):
        if options.timeout_s is not None and options.timeout_method == "signal":
            signal.signal(signal.SIGALRM, time_out)
            signal.setitimer(signal.ITIMER_REAL, options.timeout_s)
        elif options.timeout_s is not None:
            threading.Timer(options.timeout_s, os._exit, (1,)).start()
        wait_for(options.folder / "finish")


if __name__ == "__main__":
    main()
