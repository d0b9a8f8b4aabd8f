"""A limit on what a session may spend at an endpoint, in tokens and in money."""

import httpx
import pytest

from pytest_llmperf import closed, endpoint, random_tokens, retried, spending_limit
from pytest_llmperf.errors import SpecError
from pytest_llmperf.session.ledger import SpendingLimitReached

ENGINE = ("serve", "tiny", "--served-model-name", "m", "--max-model-len", "4096")
OTHER = random_tokens(input=100, output=10, arrivals=closed(4), requests=20, seed=9)
CHAT = random_tokens(input=100, output=10, arrivals=closed(4), requests=20)  # 2,200 tokens a run


def served(server):
    """Requests that the server has finished."""
    page = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=60).text
    lines = [line for line in page.splitlines() if line.startswith("vllm:request_success_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@pytest.mark.emulated
@pytest.mark.parametrize(("limit", "cost", "most"), [
    (spending_limit(tokens=6_000), "6,600 tokens", "6,000 tokens"),
    (spending_limit(money=0.01, input_price=2, output_price=10), r"0\.02", r"0\.01"),
])
def test_plan_above_limit_is_refused_before_first_request(emulate, perf, limit, cost, most):
    server = emulate(engine=ENGINE)
    spec = endpoint(server.url, model="m", limit=limit)
    with pytest.raises(SpendingLimitReached, match=f"3 runs of 20 requests can cost up to {cost}.*limit is {most}.*"
                                                   "Nothing was sent"):
        perf.measure(spec, CHAT, runs=3)
    assert served(server) == 0


@pytest.mark.emulated
def test_spent_tokens_reduce_rest_of_limit(emulate, perf):
    spec = endpoint(emulate(engine=ENGINE).url, model="m", limit=spending_limit(tokens=15_000))
    perf.measure(spec, CHAT, runs=2)
    with pytest.raises(SpendingLimitReached, match=r"were spent in this session.*Nothing more was sent"):
        perf.measure(spec, OTHER, runs=4)


@pytest.mark.emulated
def test_every_attempt_counts_in_the_plan(emulate, perf):
    spec = endpoint(emulate(engine=ENGINE).url, model="m", limit=spending_limit(tokens=6_000))
    with pytest.raises(SpendingLimitReached, match="6,200 tokens"):  # 20 × (3 × 100 + 10)
        perf.measure(spec, retried(CHAT, attempts=3), runs=1)


@pytest.mark.parametrize(("arguments", "message"), [
    ({}, "write tokens=2_000_000, or money=5"),
    ({"tokens": 5, "money": 1}, "write tokens=2_000_000, or money=5"),
    ({"tokens": 0}, "tokens must be a whole number of at least 1"),
    ({"tokens": 5, "input_price": 1}, "tokens have no prices"),
    ({"money": 5, "input_price": 1}, "output_price must be a number"),
    ({"money": -5, "input_price": 1, "output_price": 1}, "money must be a number of at least 0"),
])
def test_invalid_limit_is_refused_with_remedy(arguments, message):
    with pytest.raises(SpecError, match=message):
        spending_limit(**arguments)


def test_limit_of_another_type_is_refused():
    with pytest.raises(SpecError, match="write limit=spending_limit"):
        endpoint("http://127.0.0.1:9", model="m", limit=5)
