"""How many requests share a step: throughput against `max_num_seqs`, and the KV cache that blocks leave empty."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, by_kind, closed, random_tokens, vllm

# A decode step reads all weights once, whatever the number of answers that it extends. So four times as many sequences
# give nearly four times the tokens, until the KV cache that a step reads, or the arithmetic, takes as long as the
# weights. Limit → what it gives at least, compared with the limit before. Few requests share the small limits, or the
# last one would wait for longer than a client does.
LLAMA = {
    "model": "llama-3.1-8b", "context": 4096,
    "few": {1: None, 4: 2.5, 16: 2.5, 64: 2.0}, "many": {64: None, 256: 1.2, 512: 0.9},
}  # fmt: skip
SEQUENCES = by_kind(
    # A step of this model is mostly the engine's own work, whose share of each request does not shrink.
    cpu={"model": "tiny", "context": 2048, "few": {1: None, 4: 1.5, 16: 1.0}, "many": {16: None, 64: 0.8}},
    l4=LLAMA | {"model": "phi-4-mini"},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)
# Half a block of each request is empty on average. vLLM's FlashAttention takes blocks of 16 tokens and more, so 8 runs
# on the emulator alone; on a CPU blocks have 32 tokens and more.
SHORT = {"model": "llama-3.1-8b", "context": 4096, "blocks": (16, 32, 64), "emulated_blocks": (8, 16, 32)}
BLOCKS = by_kind(
    cpu=SHORT | {"model": "tiny", "blocks": (32, 64, 128)},
    l4=SHORT | {"model": "phi-4-mini"},
    a100=SHORT,
    h100=SHORT,
    h200=SHORT,
)


@SEQUENCES
@pytest.mark.parametrize("waiting", ["few", "many"])
def test_throughput_follows_limit_of_sequences(waiting: str, case: SimpleNamespace, perf: Perf) -> None:
    limits = getattr(case, waiting)
    most = max(limits)
    crowd = random_tokens(input=16, output=24, arrivals=closed(most), requests=most)
    unlimited = vllm(case.model, max_model_len=case.context)
    specs = {unlimited.with_flags(max_num_seqs=limit): f"of_{limit}" for limit in limits}
    sides = {specs[spec]: perf.measure(spec, crowd, runs=2) for spec in perf.together(*specs)}
    for limit in limits:
        run = sides[f"of_{limit}"]
        # No step can exceed the limit, but the interval over two runs can: a quarter is far from the next limit.
        perf.check(run, f"tokens_per_step <= {1.25 * limit}", f"tokens_per_step >= {limit / 2}", "error_rate == 0")
    perf.compare(
        *(
            f"output_throughput(of_{limit}) / output_throughput(of_{before}) >= {limits[limit]}"
            for before, limit in pairwise(limits)
        ),
        **sides,
    )


@BLOCKS
def test_larger_blocks_leave_more_of_the_cache_empty(case: SimpleNamespace, perf: Perf) -> None:
    """The waste follows from the sizes: (size − 1) ÷ 2 tokens a request. What blocks do to speed is reported."""
    sizes = case.emulated_blocks if perf.emulated else case.blocks
    answers = random_tokens(input=(16, 144), output=(16, 80), arrivals=closed(8), requests=64)
    tokens = 80 + 48
    specs = {vllm(case.model, max_model_len=case.context, block_size=size): size for size in sizes}
    measured = {specs[spec]: perf.measure(spec, answers) for spec in perf.together(*specs)}
    sides = {}
    for size in sizes:
        run = measured[size]
        wasted = (size - 1) / 2 / (tokens + (size - 1) / 2)
        perf.check(
            run, f"kv_fragmentation >= {60 * wasted:.3g}%", f"kv_fragmentation <= {140 * wasted:.3g}%",
            "preemptions == 0", "error_rate == 0",
        )
        sides[f"of_{size}"] = run
    smallest, *larger = sides
    perf.compare(*(f"output_throughput({size}) / output_throughput({smallest})" for size in larger), **sides)
