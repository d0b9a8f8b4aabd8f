"""Mean TPOT and TTFT of a closed loop without simulating it: quick enough to fit with.

Not exact: fitting.py multiplies it by how the replay of the same run differs from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator_fit.rows import Row
from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.cost.step_time import StepLoad, StepTime

ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated TTFT and TPOT in milliseconds."""

    ttft_ms: float
    tpot_ms: float


def estimate(row: Row, step_time: StepTime) -> Estimate:
    """Decode steps at the mean context, and between them the prefills of the other requests that run.

    Each of them brings one prompt into a request's life: vLLM computes it in the step of the decodes, SGLang in a step
    of its own unless chunks are mixed. Where all requests keep step (`row.in_step`), half of the prompts come before
    the own first token. A first token waits for the step that runs, for its own prompt, and once in a run for half of
    a whole round.
    """
    prompt, output, config = row.mean_input, row.mean_output, row.config
    running = _running(row, config)
    context = prompt + output / 2
    decode = _decode(running, context, step_time)
    others = (running - 1) / output * (0.5 if row.in_step else 1.0)
    if config.engine == "sglang" and not config.mixed_chunk:
        together = max(1.0, others)
        prefill = _alone_s(prompt, 1.0, step_time)
        tpot = decode + others / together * _alone_s(prompt, together, step_time)
    else:
        prefill = _beside_s(prompt, running, context, config, step_time)
        tpot = decode + others * prefill
    burst = (running - 1) / 2 * prefill / (1 if row.in_step else ROUNDS)
    ttft = step_time.ingress_s(round(prompt)) + 1.5 * decode + prefill + burst
    return Estimate(1e3 * ttft, 1e3 * tpot)


def _running(row: Row, config: EngineConfig) -> float:
    """Sequences that run at once: what the clients send, or what the KV cache holds."""
    each = row.mean_input + row.mean_output / 2
    return min(row.concurrency / config.data_parallel, config.num_blocks * config.block_size / each)


def _decode(running: float, context: float, step_time: StepTime) -> float:
    n = max(1, round(running))
    kv = running * context
    return float(step_time.seconds(StepLoad(n, n, 0, n, round(kv), kv)))


def _alone_s(prompt: float, prompts: float, step_time: StepTime) -> float:
    """Seconds of a prefill step that takes several waiting prompts at once."""
    tokens, n = prompt * prompts, max(1, round(prompts))
    return float(step_time.seconds(StepLoad(n, round(tokens), round(tokens), n, round(tokens), tokens * prompt / 2)))


def _beside_s(prompt: float, running: float, context: float, config: EngineConfig, step_time: StepTime) -> float:
    """Seconds that a prompt adds to the steps of `running` decodes, in chunks of the budget."""
    n = max(0, round(running) - 1)
    budget = config.max_num_batched_tokens - n
    base = _decode(running, context, step_time) if n else 0.0
    total, done = 0.0, 0.0
    while done < prompt:
        chunk = min(budget, prompt - done)
        pairs = chunk * (done + (chunk + 1) / 2) + n * context
        tokens = round(chunk) + n
        load = StepLoad(n + 1, tokens, round(chunk), n + 1, round(done + chunk + n * context), pairs)
        total += float(step_time.seconds(load)) - base
        done += chunk
    return total
