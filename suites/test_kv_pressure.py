"""KV pressure: who lets in more than the cache can hold to its end has requests preempted, and their streams stall."""

from dataclasses import dataclass

from pytest_llmperf import Perf, by_kind, closed, random_tokens, vllm


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    context: int = 8192
    blocks: int = 1_000
    #: So many requests fit to their last token; prompts alone let more in.
    fit: int = 28
    together: int = 56
    input: int = 256
    output: int = 256


@by_kind(
    # Blocks of 128 tokens, of which vLLM keeps one to itself.
    cpu=Case("tiny", 1024, blocks=13, fit=4, together=10, input=100, output=200),
    l4=Case("phi-4-mini"), a100=Case(), h100=Case(), h200=Case(),
)  # fmt: skip
def test_a_limit_of_sequences_keeps_streams_flowing(case: Case, perf: Perf) -> None:
    scarce = vllm(case.model, max_model_len=case.context, num_gpu_blocks_override=case.blocks)
    perf.claim(
        scarce.with_flags(max_num_seqs=case.fit),
        scarce,
        random_tokens(input=case.input, output=case.output, arrivals=closed(case.together), requests=2 * case.together),
        "largest_stall_p90(b) / largest_stall_p90(a) >= 2.0",
        mechanism=["preemptions(a) == 0", "preemptions(b) >= 1"],
        allow={"ttft_p50": 50.0},  # they wait before their first token, not in the middle
    )
