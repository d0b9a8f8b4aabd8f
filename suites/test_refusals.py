"""What cannot start: an engine whose cache or model cannot hold one longest sequence says so and ends."""

from dataclasses import dataclass

from pytest_llmperf import Perf, by_kind, sglang, vllm


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    #: On a small GPU 30,576 tokens were asked for, and the KV cache held 1,136, 71 blocks of 16.
    blocks: int = 71
    beyond_model: int = 131_073


CASES = by_kind(
    cpu=Case("tiny", blocks=9, beyond_model=32_769),  # a CPU's blocks have 128 tokens
    l4=Case("phi-4-mini"), a100=Case(), h100=Case(), h200=Case(),
)  # fmt: skip


@CASES
def test_length_beyond_the_kv_cache_is_refused(case: Case, perf: Perf) -> None:
    perf.refuses(vllm(case.model, max_model_len=30_576, num_gpu_blocks_override=case.blocks), "max_model_len")


@CASES
def test_vllm_refuses_a_length_beyond_the_model(case: Case, perf: Perf) -> None:
    perf.refuses(vllm(case.model, max_model_len=case.beyond_model), "max_model_len")


@CASES
def test_sglang_refuses_a_length_beyond_the_model(case: Case, perf: Perf) -> None:
    perf.refuses(sglang(case.model, context_length=case.beyond_model), "context_length")
