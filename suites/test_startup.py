"""Start-up: from the launch of a server to its first token. What scales by demand waits for it."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, Server, by_kind, closed, random_tokens, vllm

# With a cold compile cache, which is what a fresh machine has: 83 to 136 s were seen on H200s.
CASES = by_kind(
    cpu={"model": "tiny", "context": 4096, "ready": "90s"},
    l4={"model": "phi-4-mini", "context": 16384, "ready": "240s"},
    a100={"model": "llama-3.1-8b", "context": 16384, "ready": "180s"},
    h100={"model": "llama-3.1-8b", "context": 16384, "ready": "150s"},
    h200={"model": "llama-3.1-8b", "context": 16384, "ready": "150s"},
)


@CASES
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=case.context))
def test_the_server_is_ready_in_time(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    if perf.session.hardware.emulated:
        pytest.skip("how long a server takes to start is not emulated")
    run = perf.measure(engine, random_tokens(input=128, output=16, arrivals=closed(1), requests=4), runs=2)
    perf.check(run, f"startup_s <= {case.ready}", "error_rate == 0")
