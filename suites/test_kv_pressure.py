"""KV pressure: who lets in more than the cache can hold to its end has requests preempted, and their streams stall."""

from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, closed, random_tokens, vllm

# `fit` requests fit to their last token; prompts alone let more in.
LLAMA = {
    "model": "llama-3.1-8b", "context": 8192, "blocks": 1_000, "fit": 28, "together": 56, "input": 256, "output": 256,
    "shorter": 2.0,
}  # fmt: skip
CASES = by_kind(
    cpu={
        # Blocks of 128 tokens, of which vLLM keeps one to itself.
        "model": "tiny", "context": 1024, "blocks": 13, "fit": 4, "together": 10, "input": 100, "output": 200,
        "shorter": 2.0,
    },
    l4=LLAMA | {"model": "phi-4-mini"},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)  # fmt: skip


@CASES
def test_a_limit_of_sequences_keeps_streams_flowing(case: SimpleNamespace, perf: Perf) -> None:
    scarce = vllm(case.model, max_model_len=case.context, num_gpu_blocks_override=case.blocks)
    limited = scarce.with_flags(max_num_seqs=case.fit)
    crowd = random_tokens(
        input=case.input, output=case.output, arrivals=closed(case.together), requests=2 * case.together
    )
    perf.claim(
        limited,
        scarce,
        crowd,
        f"largest_stall_p90(b) / largest_stall_p90(a) >= {case.shorter}",
        mechanism=["preemptions(a) == 0", "preemptions(b) >= 1"],
        allow={"ttft_p50": 50.0},  # they wait before their first token, not in the middle
    )
