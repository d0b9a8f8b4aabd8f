"""Emulated servers on loopback, one process each."""

import random
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass

import httpx
import pytest

from pytest_llmperf import Perf
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.session import warm_up
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import Hardware
from tests.conftest import BUSY_MACHINE


@dataclass
class Emulated:
    """A server that listens."""

    process: subprocess.Popen
    port: int
    said: str

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        """Its exit code."""
        self.process.terminate()
        return self.process.wait(60)


@pytest.fixture
def busy_machine(monkeypatch):
    """Settings of a session on a busy machine: wide limits for the delays of the load generator."""
    monkeypatch.setattr(warm_up, "AGREE", 1000.0)
    return Settings(**tomllib.loads(BUSY_MACHINE))


@pytest.fixture
def perf(tmp_path, busy_machine):
    """A session on a busy machine."""
    session = PerfSession(busy_machine, tmp_path, Hardware(), lambda _status: None, rng=random.Random())
    yield Perf(begin_execution(session, "test", "cpu"))
    session.close()


@pytest.fixture
def emulate():
    """Starts one: emulate("--fault", "x", engine=["serve", "tiny", …]); the port is its own choice."""
    started = []

    def start(*options, engine=("serve", "tiny", "--max-model-len", "4096", "--enable-prompt-tokens-details")):
        command = [sys.executable, "-m", "pytest_llmperf.emulator", "--hardware", "h200", *options, "--", *engine]
        process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
        started.append(process)
        said = process.stdout.readline()
        return Emulated(process, int(re.search(r"http://127\.0\.0\.1:(\d+)", said)[1]), said)

    yield start
    for process in started:
        process.kill()
        process.wait(60)
        process.stdout.close()


@pytest.fixture
def client():
    with httpx.Client(timeout=60, trust_env=False) as opened:
        yield opened
