"""A server that outlives its session is reported in one sentence, and the session does not pass."""

import pytest

pytestmark = pytest.mark.emulated

SUITE = """
from pytest_llmperf import closed, random_tokens, vllm
from pytest_llmperf.errors import Evidence, StopFailed

def survives(_grace_s):
    raise StopFailed("still alive after SIGKILL: VLLM::EngineCore (pid 4242)", Evidence("serve", "running", 1.0))

def test_it(perf):
    run = perf.measure(vllm("tiny"), random_tokens(input=8, output=4, arrivals=closed(1), requests=6), runs=2)
    server = perf._execution.session.pool.acquire(vllm("tiny").on(perf.kind))
    server.unit.process.stop = survives  # its pipe closes with this process: it ends then
    perf.check(run, LIMIT)
"""


@pytest.mark.parametrize("workers", [
    pytest.param([], id="alone"), pytest.param(["-n1"], id="xdist", marks=pytest.mark.thorough),
])
@pytest.mark.parametrize(("limit", "code"), [("error_rate == 0", 10), ("ttft_p50 <= 1us", 1)])
def test_surviving_server_is_reported_and_makes_exit_code_nonzero(run, workers, limit, code):
    result, _ = run(SUITE.replace("LIMIT", repr(limit)), "--emulate", "h200", *workers)
    result.stdout.fnmatch_lines(["llmperf ERROR: a server outlives its session: still alive *(pid 4242)"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert result.ret == code
