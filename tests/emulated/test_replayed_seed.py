"""The same prompts twice, to a server whose cache nobody can empty: the second time is another measurement."""

from pathlib import Path

import pytest

SUITE = """
import pytest
from pytest_llmperf import closed, endpoint, random_tokens

SERVER = endpoint("{url}", model="{model}")
WORKLOAD = random_tokens(input=256, output=8, arrivals=closed(2), requests=12)

@pytest.mark.parametrize("time", ["first", "second"])
def test_x(perf, time):
    perf.check(perf.measure(SERVER, WORKLOAD, runs=1), "error_rate == 0")
"""


@pytest.fixture
def replayed(emulate, client, pytester):
    server = emulate("--fault", "step_time=+2000%")  # what this machine adds to a request is then little beside it
    (model,) = client.get(f"{server.url}/v1/models").json()["data"]
    Path(pytester.path, "llmperf.toml").write_text("clock_gap_limit_ms = 60000\nsend_delay_p99_limit_ms = 5000\n")
    pytester.makepyfile(test_it=SUITE.format(url=server.url, model=model["id"]))
    return pytester.runpytest_subprocess("-p", "no:cacheprovider")


def test_a_seed_that_is_sent_twice_without_a_flush(replayed):
    replayed.assert_outcomes(passed=1, errors=1)
    assert replayed.ret == 10
    replayed.stdout.fnmatch_lines(["*prefix-cache hit rate *, where these requests can have 0.0% at most*"])
