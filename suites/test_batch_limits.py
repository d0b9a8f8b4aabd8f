"""How many requests share a step: throughput against `max_num_seqs`, and the KV cache that blocks leave empty."""

from dataclasses import dataclass
from itertools import pairwise

import pytest

from pytest_llmperf import Perf, by_kind, closed, random_tokens, vllm


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    context: int = 4096
    # Limit of sequences, and its throughput at least, compared with the limit before. Few requests wait for the small
    # limits, or the last one would wait for longer than a client does.
    few: tuple[tuple[int, float], ...] = ((1, 1), (4, 2.5), (16, 2.5), (64, 2.0))
    many: tuple[tuple[int, float], ...] = ((64, 1), (256, 1.2), (512, 0.9))
    smallest_block: int = 16


CASES = by_kind(
    # A step of this model is mostly the engine's own work, whose share of each request does not shrink.
    cpu=Case("tiny", 2048, few=((1, 1), (4, 1.5), (16, 1.0)), many=((16, 1), (64, 0.8)), smallest_block=32),
    l4=Case("phi-4-mini"), a100=Case(), h100=Case(), h200=Case(),
)  # fmt: skip


@CASES
@pytest.mark.parametrize("waiting", ["few", "many"])
def test_throughput_follows_limit_of_sequences(waiting: str, case: Case, perf: Perf) -> None:
    gains = dict(case.few if waiting == "few" else case.many)
    most = max(gains)
    crowd = random_tokens(input=16, output=24, arrivals=closed(most), requests=most)
    engines = {f"of_{limit}": vllm(case.model, max_model_len=case.context, max_num_seqs=limit) for limit in gains}
    sides = perf.measure_each(engines, crowd, runs=2)
    for limit in gains:
        # No step can exceed the limit, but the interval over two runs can: a quarter is far from the next limit.
        perf.check(sides[f"of_{limit}"], f"tokens_per_step <= {1.25 * limit}", f"tokens_per_step >= {limit / 2}",
                   "error_rate == 0")
    perf.compare(
        *(f"output_throughput(of_{limit}) / output_throughput(of_{smaller}) >= {gains[limit]}"
          for smaller, limit in pairwise(gains)),
        **sides,
    )


@CASES
def test_larger_blocks_leave_more_of_the_cache_empty(case: Case, perf: Perf) -> None:
    """Half a block of each request is empty on average. What blocks do to speed is reported."""
    # FlashAttention takes blocks of 16 tokens and more, so blocks of 8 run on the emulator alone.
    smallest = case.smallest_block // 2 if perf.emulated else case.smallest_block
    sizes = {f"of_{size}": size for size in (smallest, 2 * smallest, 4 * smallest)}
    answers = random_tokens(input=(16, 144), output=(16, 80), arrivals=closed(8), requests=64)
    engines = {side: vllm(case.model, max_model_len=case.context, block_size=size) for side, size in sizes.items()}
    sides = perf.measure_each(engines, answers)
    for side, size in sizes.items():
        empty = (size - 1) / 2
        share = empty / (80 + 48 + empty)  # of the mean prompt and answer
        perf.check(sides[side], f"kv_fragmentation >= {60 * share:.3g}%", f"kv_fragmentation <= {140 * share:.3g}%",
                   "preemptions == 0", "error_rate == 0")
    perf.compare(*(f"output_throughput({side}) / output_throughput(of_{smallest})" for side in list(sides)[1:]),
                 **sides)
