"""Conversations whose next turn contains what the server answered: the capacity plan of a chat service.

Ten shared starters, five turns, answers of about 780 tokens, and an input that grows to about 7,000 tokens. A prefix
cache that keeps prompts and loses generated tokens fails by the hit rate of the turns 2 to 5.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_llmperf import EngineSpec, Perf, Server, Workload, by_kind, exponential, multi_turn, poisson, sglang, vllm

TURNS = 5
#: Each limit of `SEARCH` has 300 requests that show a queue: docs/evidence/suite_limits.md.
LIMITS = ["ttft_p99 <= 1000ms", "tpot_p99 <= 60ms"]


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    context: int = 16384
    starters: int = 10
    starter: tuple[int, int] = (3500, 4000)
    output: tuple[int, int] = (555, 1008)
    think_s: Any = exponential(2)
    conversations: int = 30
    rate: float = 0.5
    ttft_of_first_turn: str = "500ms"
    ttft_of_later_turns: str = "100ms"
    vllm_flags: dict[str, Any] = field(default_factory=dict)
    #: In the search: requests at once, and conversations in a second that must be served.
    seats: int = 24
    capacity: float = 0.0


# Scaled down to a tenth: a conversation takes about 1.5 s of two cores. Blocks of 32 tokens, the smallest on a CPU: of
# vLLM's default of 128 a turn would compute 64 tokens again, more than an answer has.
CPU = Case("tiny", 4096, starters=4, starter=(350, 400), output=(32, 64), think_s=0.05, conversations=15, rate=0.4,
           ttft_of_first_turn="2s", ttft_of_later_turns="1s", vllm_flags={"block_size": 32}, seats=4)
CASES = by_kind(
    cpu=CPU,
    l4=Case("phi-4-mini", rate=0.05, ttft_of_first_turn="1500ms", ttft_of_later_turns="400ms"),
    a100=Case(rate=0.25, ttft_of_first_turn="700ms", ttft_of_later_turns="150ms"),
    h100=Case(),
    h200=Case(),
)
SEARCH = by_kind(
    cpu=replace(CPU, rate=1, conversations=60, capacity=0.2),
    a100=Case(rate=0.2, conversations=60, capacity=0.2),
    h100=Case(rate=0.3, conversations=60, capacity=0.3),
    h200=Case(rate=0.4, conversations=60, capacity=0.4),
)


def on_vllm(case: Case) -> EngineSpec:
    return vllm(case.model, max_model_len=case.context, **case.vllm_flags)


def on_sglang(case: Case) -> EngineSpec:
    return sglang(case.model, context_length=case.context)


def talk(case: Case) -> Workload:
    return multi_turn(
        conversations=case.conversations, turns=TURNS, arrivals=poisson(case.rate), starters=case.starters,
        starter=case.starter, input=(8, 24), output=case.output, think_s=case.think_s, reply="server",
    )  # fmt: skip


@CASES
@pytest.mark.engine(on_vllm, on_sglang, ids=["vllm", "sglang"])
def test_later_turns_find_the_answers_in_the_cache(case: Case, engine: Server, perf: Perf) -> None:
    run = perf.measure(engine, talk(case))
    perf.check(
        run,
        "hit_rate_turn2plus >= 90%",
        f"ttft_turn1_p50 <= {case.ttft_of_first_turn}",
        f"ttft_turn2plus_p50 <= {case.ttft_of_later_turns}",
        "error_rate == 0",
    )


@SEARCH
@pytest.mark.engine(
    lambda case: on_vllm(case).with_flags(max_num_seqs=case.seats),
    lambda case: on_sglang(case).with_flags(max_running_requests=case.seats),
    ids=["vllm", "sglang"],
)
def test_so_many_conversations_are_served_in_time(case: Case, engine: Server, perf: Perf) -> None:
    found = perf.max_rate(engine, talk(case), slo=LIMITS, precision=1, try_rates=[case.capacity * TURNS])
    perf.check(found, f"max_conversation_rate >= {case.capacity}/s")
