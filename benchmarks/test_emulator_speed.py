"""How much faster than real time the emulator's virtual clock is, in processor time of one core.

    python -m pytest benchmarks/test_emulator_speed.py --benchmark-columns=min,median,ops
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.config import EngineConfig, Speculation
from pytest_llmperf.emulator.cost.coefficients import coefficients_for
from pytest_llmperf.emulator.cost.step_time import StepTime
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "stubs"))

from virtual_client import Plan, Request, replay

pytest.importorskip("pytest_benchmark")
pytestmark = pytest.mark.benchmark(timer=time.process_time)

CONFIG = {
    "engine": "vllm", "shape": SHAPES["llama-3.1-8b"], "gpu": GPU_KINDS["h200"], "max_model_len": 8192,
    "block_size": 16, "max_num_batched_tokens": 8192, "max_num_seqs": 1024, "num_blocks": 50_000,
}  # fmt: skip


def plan(requests: int, per_second: float, prompt: int, output: int) -> Plan:
    draw = random.Random(7)
    texts = [tuple(draw.randrange(32_000) for _ in range(prompt)) for _ in range(requests)]
    return Plan(tuple(Request(i, text, output, at_ns=round(i * 1e9 / per_second)) for i, text in enumerate(texts)))


def measure(benchmark, plan: Plan, **changes: object) -> float:
    """Seconds of the server's time per second of this machine's."""
    config = EngineConfig(**(CONFIG | changes))
    step_time = StepTime(config, coefficients_for("vllm", config.gpu))

    def fresh():
        return (Deployment(config, step_time), plan), {}

    answers = benchmark.pedantic(replay, setup=fresh, rounds=30)
    lasted_s = (max(a.ended_ns for a in answers) - answers[0].sent_ns) / 1e9
    benchmark.extra_info["times_real_time"] = round(lasted_s / benchmark.stats.stats.min)
    assert all(a.output_tokens == r.max_tokens for a, r in zip(answers, plan.requests, strict=True))
    return lasted_s / benchmark.stats.stats.min


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_hundred_requests_of_128_tokens(benchmark, prefix_caching):
    assert measure(benchmark, plan(100, 10, 1024, 128), prefix_caching=prefix_caching) >= 1000


def test_near_saturation(benchmark):
    measure(benchmark, plan(200, 40, 2048, 256))


def test_speculation_goes_step_by_step(benchmark):
    measure(benchmark, plan(100, 10, 1024, 128), speculation=Speculation(3, (0.73, 0.71, 0.68)))
