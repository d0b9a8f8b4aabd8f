"""Recorded traffic: lengths, times and shared blocks of published trace formats, as a service met them."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, by_kind, poisson, recorded, sharegpt, trace, vllm

FILES = {"mooncake": "mooncake.jsonl", "burstgpt": "burstgpt.csv", "azure": "azure.csv", "spans": "spans.jsonl",
         "run": "requests.json.gz"}
LLAMA = {"model": "llama-3.1-8b", "requests": 24, "rate": 4, "ttft": "500ms"}
CASES = by_kind(
    cpu={"model": "tiny", "requests": 15, "rate": 0.5, "ttft": "10s"},
    l4=LLAMA | {"model": "phi-4-mini", "rate": 1, "ttft": "1500ms"},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    """A folder with one file of each format, written by scripts/write_traces.py with a fixed seed."""
    script = Path(__file__).parents[1] / "scripts" / "write_traces.py"
    spec = spec_from_file_location("write_traces", script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(tmp_path, 60, 7)
    module.write_requests(tmp_path, 60, 7)
    return tmp_path


@CASES
def test_recorded_requests_are_answered_in_time(case: SimpleNamespace, perf: Perf, traffic: Path) -> None:
    engine = vllm(case.model, max_model_len=4096, enable_prefix_caching=True)
    for name in FILES.values():
        requests = trace(path=traffic / name, arrivals=recorded(rate=case.rate), requests=case.requests)
        run = perf.measure(engine, requests)
        # Only Mooncake has blocks: every third request begins with the same 512 of about 1,300 tokens.
        shared = "prefix_cache_hit_rate >= 8%" if name == FILES["mooncake"] else "prefix_cache_hit_rate == 0"
        perf.check(run, shared, f"ttft_p50 <= {case.ttft}", "error_rate == 0")


@CASES
def test_recorded_questions_are_answered_in_time(case: SimpleNamespace, perf: Perf, tmp_path: Path) -> None:
    if case.kind == "cpu":
        pytest.skip("the tiny model has no tokenizer for text")
    words, rng = ("time", "token", "server", "answer", "question", "model"), Random(7)
    talks = [{"conversations": [
        {"from": "human", "value": " ".join(rng.choice(words) for _ in range(rng.randrange(30, 300)))},
        {"from": "gpt", "value": " ".join(rng.choice(words) for _ in range(rng.randrange(10, 60)))},
    ]} for _ in range(60)]
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(talks))
    questions = sharegpt(path=path, arrivals=poisson(case.rate), requests=case.requests)
    run = perf.measure(vllm(case.model, max_model_len=4096, enable_prefix_caching=True), questions)
    perf.check(run, "prefix_cache_hit_rate == 0", f"ttft_p50 <= {case.ttft}", "error_rate == 0")
