"""A measured run again, on the emulator in virtual time."""

from __future__ import annotations

import random

from emulator_fit.rows import Row
from pytest_llmperf.calibration.host_fit import Means, TimedRequest, replayed
from pytest_llmperf.emulator.cost.coefficients import Coefficients
from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.http.generation_request import GenerationRequest


def row_replayed(row: Row, coefficients: Coefficients, rounds: int = 10, seed: int = 0) -> Means:
    """Mean TTFT and TPOT of `rounds` × concurrency requests in a closed loop.

    Lengths are drawn evenly between `spread` × nominal and nominal. No two prompts begin alike, so nothing is found.
    """
    draw = random.Random(seed)
    longest = tuple(range(row.input_tokens))

    def post(index: int) -> TimedRequest:
        prompt = draw.randint(round(row.input_tokens * row.spread), row.input_tokens)
        answer = draw.randint(round(row.output_tokens * row.spread), row.output_tokens)
        return None, GenerationRequest("completion", ((-1 - index, *longest[1:prompt]),), answer, stream=True)

    posts = [post(index) for index in range(row.concurrency * rounds)]
    return replayed(Launch(row.config, "", 0, "model", ("model",)), posts, row.concurrency, coefficients)
