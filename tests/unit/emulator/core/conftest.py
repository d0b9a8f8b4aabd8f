"""A small engine whose steps cost a linear time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.core.engine import Engine, FastForward
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.core.vllm_scheduler import VllmScheduler
from pytest_llmperf.emulator.cost.step_time import StepLoad
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES

CONFIG = EngineConfig(
    engine="vllm",
    shape=SHAPES["tiny"],
    gpu=GPU_KINDS["h200"],
    max_model_len=512,
    max_num_batched_tokens=32,
    max_num_seqs=8,
    block_size=4,
    num_blocks=101,
    async_scheduling=False,
)


class LinearTime:
    """1 ms, 10 µs per token, 0.1 µs per token read, and a bit of everything odd."""

    def seconds(self, load: StepLoad) -> Any:
        fixed = 1.0e-3 + 1.03e-5 * load.tokens + 1.7e-6 * load.sampled + 3e-6 * load.drafted
        return fixed + load.kv_tokens * 1.13e-7 + load.attention_pairs * 1.9e-8

    def ingress_s(self, prompt_tokens: int) -> float:
        return 1e-4 + prompt_tokens * 1e-7


class Shaky:
    """Factors and stalls that depend on the number of the step only."""

    leaked_blocks = 0

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def factors(self, first_step: int, count: int) -> Any:
        steps = np.arange(first_step, first_step + count)
        return 1.0 + 0.1 * np.sin(steps * 1.7 + self._seed)

    def delays_s(self, first_step: int, count: int) -> Any:
        steps = np.arange(first_step, first_step + count)
        return np.where((steps + self._seed) % 7 == 0, 0.0123, 0.0)

    def begin_run(self, age_s: float) -> None:
        self._seed += 1


@dataclass(frozen=True)
class Event:
    started_ns: int
    ended_ns: int
    tokens: tuple[tuple[int, int], ...]
    finished: tuple[int, ...]


class Lab:
    Shaky = Shaky
    time = LinearTime()

    def config(self, **changes: Any) -> EngineConfig:
        return replace(CONFIG, **changes)

    def engine(self, disturbance: Any = None, **changes: Any) -> Engine:
        return Engine(LinearTime(), VllmScheduler(self.config(**changes)), disturbance)

    def scheduler(self, leaked_blocks: int = 0, **changes: Any) -> VllmScheduler:
        return VllmScheduler(self.config(**changes), None, leaked_blocks)

    def sequence(self, number: int, prompt: Any, max_tokens: int, **more: Any) -> Sequence:
        tokens = tuple(range(1000 * number, 1000 * number + prompt)) if isinstance(prompt, int) else tuple(prompt)
        return Sequence(number, tokens, max_tokens, 0, **more)

    def drive(
        self, engine: Engine, arrivals: list[tuple[int, Sequence]], leaping: bool, check: Any = None
    ) -> list[Event]:
        """Runs all sequences to the end. Returns an event per step; a fast-forward is expanded into its steps."""
        events: list[Event] = []
        coming = sorted(arrivals, key=lambda entry: entry[0])
        now_ns = 0
        while True:
            while coming and coming[0][0] <= now_ns:
                arrived_ns, sequence = coming.pop(0)
                engine.add(sequence, arrived_ns)
            until_ns = coming[0][0] if coming else None
            done = (engine.fast_forward(now_ns, until_ns) if leaping else None) or engine.step(now_ns)
            if check is not None:
                check(engine)
            if done is None:
                if until_ns is None:
                    return events
                now_ns = until_ns
                continue
            if isinstance(done, FastForward):
                started_ns = done.started_ns
                for number, ended_ns in enumerate(done.ends_ns):
                    finished = done.finished if number == len(done.ends_ns) - 1 else []
                    tokens = tuple((s.id, 1) for s in done.sequences)
                    events.append(Event(started_ns, ended_ns, tokens, tuple(s.id for s in finished)))
                    started_ns = ended_ns
            else:
                tokens = tuple((s.id, count) for s, count in done.tokens)
                events.append(Event(done.started_ns, done.ended_ns, tokens, tuple(s.id for s in done.finished)))
            now_ns = done.ended_ns


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
