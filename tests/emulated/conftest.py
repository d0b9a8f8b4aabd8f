"""Emulated servers on loopback, one process each."""

import socket
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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def emulate():
    """Starts one: emulate("--fault", "x", engine=["serve", "tiny", …]); the port is added."""
    started = []

    def start(*options, engine=("serve", "tiny", "--max-model-len", "4096", "--enable-prompt-tokens-details")):
        port = free_port()
        command = [sys.executable, "-m", "pytest_llmperf.emulator", "--hardware", "h200", *options, "--", *engine]
        process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return Emulated(process, port, process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.fixture
def client():
    with httpx.Client(timeout=20, trust_env=False) as opened:
        yield opened
