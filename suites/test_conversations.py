"""Conversations whose next turn contains what the server answered: the capacity plan of a chat service.

Ten shared starters, five turns, answers of about 780 tokens, and an input that grows to about 7,000 tokens. A prefix
cache that keeps prompts and loses generated tokens fails by the hit rate of the turns 2 to 5.
"""

from types import SimpleNamespace

import pytest

from pytest_llmperf import EngineSpec, Perf, Server, by_kind, exponential, multi_turn, poisson, sglang, vllm
from pytest_llmperf.workload import Workload

LLAMA = {
    "model": "llama-3.1-8b", "context": 16384, "starters": 10, "starter": (3500, 4000), "input": (8, 24),
    "output": (555, 1008), "think_s": exponential(2), "conversations": 30, "rate": 0.5, "first": "500ms",
    "later": "100ms",
}  # fmt: skip
# Scaled down to a tenth: a conversation takes about 1.5 s of two cores. Blocks of 32 tokens, the smallest on a CPU: of
# vLLM's default of 128 a turn would compute 64 tokens again, more than an answer has.
CPU = {
    "model": "tiny", "context": 4096, "starters": 4, "starter": (350, 400), "input": (8, 24), "output": (32, 64),
    "think_s": 0.05, "conversations": 15, "rate": 0.4, "first": "2s", "later": "1s", "block_size": 32,
}  # fmt: skip
CASES = by_kind(
    cpu=CPU,
    l4=LLAMA | {"model": "phi-4-mini", "rate": 0.05, "first": "1500ms", "later": "400ms"},
    a100=LLAMA | {"rate": 0.25, "first": "700ms", "later": "150ms"},
    h100=LLAMA,
    h200=LLAMA,
)
# So few requests at once that 300 of them show a queue: as many as the capacity plan sends at each rate. 24 streams of
# 5,900 tokens read 18 GB of KV cache and 16 GB of weights: 9 ms a step on an H200, 12 ms on an H100, 21 ms on an A100.
# The 3,900 tokens of a conversation take 35, 49 and 82 s, so 24 seats serve 0.7, 0.5 and 0.3 conversations/s. An L4 has
# no case: 60 conversations take it 50 minutes. A token takes vLLM 3 ms and SGLang 7 ms on two quiet cores, so the 240
# tokens of a conversation take 0.9 and 1.9 s, and 4 seats serve at most 4.4 and 2.1 conversations/s. The search starts
# at half of the lower rate. The check leaves a factor of ten for slower machines.
LLAMA_SEARCH = LLAMA | {"conversations": 60, "at_once": 24}
SEARCH = by_kind(
    cpu=CPU | {"rate": 1, "conversations": 60, "at_once": 4, "capacity": 0.2},
    a100=LLAMA_SEARCH | {"rate": 0.2, "capacity": 0.2},
    h100=LLAMA_SEARCH | {"rate": 0.3, "capacity": 0.3},
    h200=LLAMA_SEARCH | {"rate": 0.4, "capacity": 0.4},
)
LIMITS = ["ttft_p99 <= 1000ms", "tpot_p99 <= 60ms"]
TURNS = 5


def on_vllm(case: SimpleNamespace) -> EngineSpec:
    spec = vllm(case.model, max_model_len=case.context)
    if hasattr(case, "block_size"):
        spec = spec.with_flags(block_size=case.block_size)
    return spec.with_flags(max_num_seqs=case.at_once) if hasattr(case, "at_once") else spec


def on_sglang(case: SimpleNamespace) -> EngineSpec:
    spec = sglang(case.model, context_length=case.context)
    return spec.with_flags(max_running_requests=case.at_once) if hasattr(case, "at_once") else spec


def talk(case: SimpleNamespace) -> Workload:
    return multi_turn(
        conversations=case.conversations, turns=TURNS, arrivals=poisson(case.rate), starters=case.starters,
        starter=case.starter, input=case.input, output=case.output, think_s=case.think_s, reply="server",
    )  # fmt: skip


@CASES
@pytest.mark.engine(on_vllm, on_sglang, ids=["vllm", "sglang"])
def test_later_turns_find_the_answers_in_the_cache(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    run = perf.measure(engine, talk(case))
    perf.check(
        run,
        "hit_rate_turn2plus >= 90%",
        f"ttft_turn1_p50 <= {case.first}",
        f"ttft_turn2plus_p50 <= {case.later}",
        "error_rate == 0",
    )


@SEARCH
@pytest.mark.engine(on_vllm, on_sglang, ids=["vllm", "sglang"])
def test_so_many_conversations_are_served_in_time(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    found = perf.max_rate(engine, talk(case), slo=LIMITS, precision=1, try_rates=[case.capacity * TURNS])
    perf.check(found, f"max_conversation_rate >= {case.capacity}/s")
