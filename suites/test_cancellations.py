"""Cancellations: a server ends the answers of clients who have left, and serves the other clients."""

from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, cancelled, closed, random_tokens, vllm

LLAMA = {"model": "llama-3.1-8b", "streams": 8, "output": 800, "requests": 40, "ttft": "500ms"}
CASES = by_kind(
    cpu={"model": "tiny", "streams": 2, "output": 200, "requests": 16, "ttft": "5s"},
    l4=LLAMA | {"model": "phi-4-mini", "ttft": "1500ms"},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)


@CASES
def test_cancelled_requests_free_the_server(case: SimpleNamespace, perf: Perf) -> None:
    answers = random_tokens(input=200, output=case.output, arrivals=closed(case.streams), requests=case.requests)
    run = perf.measure(vllm(case.model, max_model_len=4096), cancelled(answers, share=0.5, after_tokens=20))
    # After each run the session empties the cache: a server that still generates for a cancelled request refuses.
    perf.check(run, "cancelled_rate >= 25%", f"ttft_p50 <= {case.ttft}", "error_rate == 0")
