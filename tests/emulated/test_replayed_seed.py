"""The same seeds twice, to a server whose cache nobody can empty: the second time sends other prompts."""

from pathlib import Path

import pytest

from tests.conftest import BUSY_MACHINE, STEADY_AT_ONCE

SERVE = ("serve", "tiny", "--max-model-len", "4096", "--enable-prompt-tokens-details")
UNCACHED = "--no-enable-prefix-caching"
SUITE = """
import pytest
from pytest_llmperf import closed, endpoint, random_tokens

SERVER = endpoint("{url}", model="{model}")
WORKLOAD = random_tokens(input=256, output=8, arrivals=closed(2), requests=12)

def test_compared(perf):
    perf.compare_with_baseline(perf.measure(SERVER, WORKLOAD))

@pytest.mark.parametrize("time", ["first", "second"])
def test_x(perf, time):
    perf.check(perf.measure(SERVER, WORKLOAD, runs=1), "error_rate == 0")
"""


@pytest.fixture
def replayed(emulate, client, pytester, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    Path(pytester.path, "llmperf.toml").write_text(f'{BUSY_MACHINE}compare_across = ["url"]\n')
    pytester.makeconftest(STEADY_AT_ONCE)

    def replayed(tests, *options, caches=True, slower=2000):
        """Runs the suite on an emulator that is slower by `slower` %, so that the overhead of this machine is small."""
        server = emulate("--fault", f"step_time=+{slower}%", engine=SERVE if caches else (*SERVE, UNCACHED))
        (model,) = client.get(f"{server.url}/v1/models").json()["data"]
        pytester.makepyfile(test_it=SUITE.format(url=server.url, model=model["id"]))
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-k", tests, *options)

    return replayed


def test_seed_sent_twice_to_an_endpoint_has_no_cache_hit(replayed):
    """The server counts its hits, so that a prompt of the first time would make the second an ERROR."""
    result = replayed("test_x")
    result.assert_outcomes(passed=2)
    assert result.ret == 0


@pytest.mark.parametrize(("caches", "says"), [
    (True, "*tpot_mean *INCONCLUSIVE*3 runs against 3 of one session*"),
    pytest.param(
        False, "*tpot_mean *INCONCLUSIVE*8 runs against 3 of one session*", marks=pytest.mark.thorough,
    ),
])  # fmt: skip
def test_comparison_repeats_seeds_only_without_cache(replayed, caches, says):
    """+19 % is no gross regression of a CPU, so that the comparison measures as many runs as it may."""
    assert replayed("compared", "--update-baselines-new", caches=caches).ret == 0
    result = replayed("compared", "-rs", caches=caches, slower=2400)
    result.stdout.fnmatch_lines([says])
    assert result.ret == 11
