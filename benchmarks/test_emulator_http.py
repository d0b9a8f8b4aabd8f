"""How many tokens per second the emulated server streams to the load generator, and how late they leave.

Send error: actual write − intended end of the step, recorded by the server itself.
"""

import json
import random
import subprocess
import sys
import threading
import time

import pytest
from figures import quantile

from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest

STREAMS = 64  # at 2.6 ms a step of the smallest model they ask for 25,000 tokens/s
TOKENS = 2000


@pytest.fixture
def server(tmp_path):
    port, record = random.randrange(20_000, 30_000), tmp_path / "sends.jsonl"
    command = [sys.executable, "-m", "pytest_llmperf.emulator", "--hardware", "h200", "--record", str(record),
               "--model", "tiny", "--port", str(port), "--max-model-len", "8192"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert "listening" in process.stdout.readline()
    yield port, record
    process.terminate()
    process.wait(5)
    process.stdout.close()


def load(port, streams, tokens):
    fields = {"max_tokens": tokens, "stream": True,
              "stream_options": {"include_usage": True, "continuous_usage_stats": True}}  # fmt: skip
    bodies = [json.dumps(fields | {"prompt": [index % 1000] * 32}).encode() for index in range(streams)]
    requests = tuple(PlannedRequest(index, "/v1/completions", body) for index, body in enumerate(bodies))
    plan = LoadPlan("127.0.0.1", port, requests, concurrency=streams)
    replay = ProcessTransport().replay(plan, cancel=threading.Event())
    assert all(exchange.ending is Ending.COMPLETE for exchange in replay.exchanges)


def rows_of(record, warm):
    """The last line is written after the client has gone."""
    for _ in range(100):
        lines = record.read_text().splitlines()[warm:]
        if len(lines) == STREAMS:
            return [json.loads(line) for line in lines]
        time.sleep(0.05)
    raise AssertionError(f"{len(lines)} of {STREAMS} requests were recorded")


def test_streams_fast_and_in_time(server):
    port, record = server
    load(port, 4, 20)
    time.sleep(0.3)
    warm = len(record.read_text().splitlines())
    load(port, STREAMS, TOKENS)
    rows = rows_of(record, warm)
    errors_ms = [
        (sent - intended) / 1e6
        for row in rows
        for sent, intended in zip(row["sent_ns"], row["intended_ns"], strict=True)
    ]
    span_s = (max(row["sent_ns"][-1] for row in rows) - min(row["sent_ns"][0] for row in rows)) / 1e9
    rate = len(errors_ms) / span_s
    print(f"\n{rate:,.0f} tokens/s over {span_s:.1f} s, {STREAMS} streams, {len(errors_ms):,} sends; send error ms "
          f"p50 {quantile(errors_ms, 0.5):.2f} p99 {quantile(errors_ms, 0.99):.2f} max {max(errors_ms):.2f}")
    assert rate >= 20_000
    assert quantile(errors_ms, 0.99) <= 5
