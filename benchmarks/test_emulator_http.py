"""How many tokens per second the emulated server streams, and how late they leave.

Send error: actual write − intended end of the step, recorded by the server itself.
"""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

LOAD = Path(__file__).with_name("emulator_load.py")
STREAMS = 64  # at 2.6 ms a step of the smallest model they ask for 25,000 tokens/s
TOKENS = 2000


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def server(tmp_path):
    port = free_port()
    record = tmp_path / "sends.jsonl"
    command = [sys.executable, "-m", "pytest_llmperf.emulator", "--hardware", "h200", "--record", str(record),
               "--model", "tiny", "--port", str(port), "--max-model-len", "8192"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert "listening" in process.stdout.readline()
    yield process, port, record
    process.terminate()
    process.wait(5)
    process.stdout.close()


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def rows_of(record, warm):
    """The last line is written after the client has gone."""
    for _ in range(100):
        lines = record.read_text().splitlines()[warm:]
        if len(lines) == STREAMS:
            return [json.loads(line) for line in lines]
        time.sleep(0.05)
    raise AssertionError(f"{len(lines)} of {STREAMS} requests were recorded")


def quantile(values, share):
    return sorted(values)[int(share * (len(values) - 1))]


def test_streams_fast_and_in_time(server):
    process, port, record = server
    load = [sys.executable, str(LOAD), str(port)]
    subprocess.run([*load, "4", "20"], check=True, capture_output=True, timeout=60)
    time.sleep(0.3)
    warm = len(record.read_text().splitlines())
    before_cpu, began_s = cpu_s(process.pid), time.monotonic()
    done = subprocess.run([*load, str(STREAMS), str(TOKENS)], check=True, capture_output=True, text=True, timeout=120)
    took_s, took_cpu_s = time.monotonic() - began_s, cpu_s(process.pid) - before_cpu
    assert int(done.stdout) == STREAMS
    rows = rows_of(record, warm)
    errors_ms = [
        (sent - intended) / 1e6
        for row in rows
        for sent, intended in zip(row["sent_ns"], row["intended_ns"], strict=True)
    ]
    span_s = (max(row["sent_ns"][-1] for row in rows) - min(row["sent_ns"][0] for row in rows)) / 1e9
    rate = len(errors_ms) / span_s
    print(
        f"\n{rate:,.0f} tokens/s over {span_s:.1f} s, {STREAMS} streams, {len(errors_ms):,} sends; server CPU "
        f"{took_cpu_s:.2f} s of {took_s:.2f} s; send error ms p50 {quantile(errors_ms, 0.5):.2f} "
        f"p99 {quantile(errors_ms, 0.99):.2f} max {max(errors_ms):.2f}"
    )
    assert rate >= 20_000
    assert quantile(errors_ms, 0.99) <= 5
