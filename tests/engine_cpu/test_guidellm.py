"""GuideLLM's mock server, a service that this project did not write: each protocol, streamed and whole."""

import os
import random
import re
import subprocess
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from pytest_llmperf.process.ports import reserve_port
from pytest_llmperf.testing.waiting import until

ENGINES = []
pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parents[2] / ".engines" / "guidellm" / "bin" / "guidellm"
TTFT_MS, ITL_MS = 50, 10
SUITE = """
import pytest
from pytest_llmperf import closed, endpoint, random_tokens

pytestmark = [pytest.mark.cpu]

@pytest.mark.parametrize("protocol", ["completions", "chat", "responses"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_service(perf, protocol, stream):
    service = endpoint({url!r}, model="mock", protocol=protocol, stream=stream, text=True, dialect="openai", metrics=[])
    run = perf.measure(service, random_tokens(input=40, output=20, arrivals=closed(4), requests=40), runs=3)
    kind = "streamed" if stream else "whole"
    print(f"{{protocol}} {{kind}}", *(run.value(name) for name in ("ttft_p50", "itl_p50", "e2el_p50")))
    assert {{record.output_tokens for record in run.records}} == {{20}}
    perf.check(run, "error_rate == 0", "ttft_p50 <= 1s" if stream else "e2el_p50 <= 5s")
"""

TALK = """
import pytest
from pytest_llmperf import closed, endpoint, multi_turn

pytestmark = [pytest.mark.cpu]

@pytest.mark.parametrize("protocol", ["completions", "chat", "responses"])
def test_talk(perf, protocol):
    service = endpoint({url!r}, model="mock", protocol=protocol, text=True, dialect="openai", metrics=[])
    talk = multi_turn(conversations=3, turns=3, input=20, output=10, arrivals=closed(3), reply="server")
    run = perf.measure(service, talk, runs=3)
    assert {{record.answer_hash is None for record in run.records if record.turn < 3}} == {{False}}
    perf.check(run, "error_rate == 0", "ttft_turn2plus_p50 <= 1s")
"""


@pytest.fixture
def mock_server():
    if not PROGRAM.exists():
        missing = f"{PROGRAM} is missing: make guidellm"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    with closing(reserve_port(random.Random())) as lease, subprocess.Popen(
        [PROGRAM, "mock-server", "--port", str(lease.port), "--model", "mock", "--ttft-ms", str(TTFT_MS),
         "--itl-ms", str(ITL_MS)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:
        url = f"http://127.0.0.1:{lease.port}"
        until(lambda: answers(url), limit_s=120)
        yield url
        process.terminate()


def answers(url):
    try:
        return httpx.get(f"{url}/v1/models", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_conversation_goes_on_over_every_protocol_of_mock_server(run_real, mock_server):
    """The mock server numbers the tokens of a completion in the index of the choice."""
    result, tags = run_real(TALK.format(url=mock_server))
    assert list(tags.values()) == [set()] * 3, result.outlines


def test_every_protocol_of_mock_server_has_configured_latencies(run_real, mock_server):
    result, tags = run_real(SUITE.format(url=mock_server))
    assert list(tags.values()) == [set()] * 6, result.outlines
    lines = re.findall(r"(completions|chat|responses) (streamed|whole) (\S+) (\S+) (\S+)", result.stdout.str())
    assert len(set(lines)) == 6
    for _, kind, *latencies in lines:
        ttft_ms, itl_ms, e2el_ms = (None if text == "None" else float(text) for text in latencies)
        if kind == "streamed":
            assert TTFT_MS <= ttft_ms < 2 * TTFT_MS
            assert ITL_MS <= itl_ms < 2 * ITL_MS
        else:
            assert (ttft_ms, itl_ms) == (None, None)
        assert TTFT_MS + 19 * ITL_MS <= e2el_ms < 2 * (TTFT_MS + 19 * ITL_MS)
