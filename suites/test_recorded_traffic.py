"""Recorded traffic: lengths, times and shared blocks of published trace formats, as a service met them."""

from dataclasses import dataclass

from pytest_llmperf import Perf, by_kind, poisson, recorded, sharegpt, trace, vllm

TRAFFIC = "suites/tasks/traffic"


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    requests: int = 24
    rate: float = 4
    ttft: str = "500ms"


ON_GPUS = {"l4": Case("phi-4-mini", rate=1, ttft="1500ms"), "a100": Case(), "h100": Case(), "h200": Case()}


@by_kind(cpu=Case("tiny", requests=15, rate=0.5, ttft="10s"), **ON_GPUS)
def test_recorded_requests_are_answered_in_time(case: Case, perf: Perf) -> None:
    engine = vllm(case.model, max_model_len=4096, enable_prefix_caching=True)
    for file, hit_rate in (
        ("mooncake.jsonl", ">= 8%"),  # every third request begins with the same 512 of about 1,300 tokens
        ("burstgpt.csv", "== 0"), ("azure.csv", "== 0"), ("spans.jsonl", "== 0"), ("requests.json.gz", "== 0"),
    ):  # fmt: skip
        requests = trace(path=f"{TRAFFIC}/{file}", arrivals=recorded(rate=case.rate), requests=case.requests)
        run = perf.measure(engine, requests)
        perf.check(run, f"prefix_cache_hit_rate {hit_rate}", f"ttft_p50 <= {case.ttft}", "error_rate == 0")


@by_kind(**ON_GPUS)  # the tiny model of a CPU has no tokenizer for text
def test_recorded_questions_are_answered_in_time(case: Case, perf: Perf) -> None:
    questions = sharegpt(path=f"{TRAFFIC}/questions.json", arrivals=poisson(case.rate), requests=case.requests)
    run = perf.measure(vllm(case.model, max_model_len=4096, enable_prefix_caching=True), questions)
    perf.check(run, "prefix_cache_hit_rate == 0", f"ttft_p50 <= {case.ttft}", "error_rate == 0")
