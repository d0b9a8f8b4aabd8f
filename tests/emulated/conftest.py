"""Emulated servers on loopback, one process each."""

import re
import subprocess
import sys
import time
from dataclasses import dataclass

import httpx
import pytest


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
        """Its exit code, and how long it took, s."""
        began = time.monotonic()
        self.process.terminate()
        return self.process.wait(10), time.monotonic() - began


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
        process.wait(10)
        process.stdout.close()


@pytest.fixture
def client():
    with httpx.Client(timeout=20, trust_env=False) as opened:
        yield opened
