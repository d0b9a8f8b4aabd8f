"""Cancellations: a server ends the answers of clients who have left, and serves the other clients."""

from dataclasses import dataclass

from pytest_llmperf import Perf, by_kind, cancelled, closed, random_tokens, vllm


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    streams: int = 8
    output: int = 800
    requests: int = 40
    ttft: str = "500ms"


CASES = by_kind(
    cpu=Case("tiny", streams=2, output=200, requests=16, ttft="5s"),
    l4=Case("phi-4-mini", ttft="1500ms"), a100=Case(), h100=Case(), h200=Case(),
)  # fmt: skip


@CASES
def test_cancelled_requests_free_the_server(case: Case, perf: Perf) -> None:
    answers = random_tokens(input=200, output=case.output, arrivals=closed(case.streams), requests=case.requests)
    run = perf.measure(vllm(case.model, max_model_len=4096), cancelled(answers, share=0.5, after_tokens=20))
    # After each run the session empties the cache: a server that still generates for a cancelled request refuses.
    perf.check(run, "cancelled_rate >= 25%", f"ttft_p50 <= {case.ttft}", "error_rate == 0")
