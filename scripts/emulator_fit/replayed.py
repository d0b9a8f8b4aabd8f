"""A measured run again, on the emulator in virtual time."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from emulator_fit.rows import Row
from emulator_fit.virtual_client import Answer, Plan, Request, replay
from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.cost.coefficients import Coefficients
from pytest_llmperf.emulator.cost.step_time import StepTime


@dataclass(frozen=True, slots=True)
class Means:
    """Of all requests of a run, in milliseconds, and how many were preempted."""

    ttft_ms: float
    tpot_ms: float
    preemptions: int = 0


def replayed(row: Row, coefficients: Coefficients, rounds: int = 10, seed: int = 0) -> Means:
    """Mean TTFT and TPOT of `rounds` × concurrency requests in a closed loop."""
    config = row.config
    deployment = Deployment(config, StepTime(config, coefficients))
    answers = replay(deployment, plan_of(row, rounds, seed))
    return replace(_means(answers), preemptions=round(deployment.counters.preemptions))


def plan_of(row: Row, rounds: int, seed: int) -> Plan:
    """Lengths drawn evenly between `spread` × nominal and nominal; no two prompts begin alike, so nothing is found."""
    draw = random.Random(seed)
    longest = tuple(range(row.input_tokens))

    def request(index: int) -> Request:
        prompt = draw.randint(round(row.input_tokens * row.spread), row.input_tokens)
        answer = draw.randint(round(row.output_tokens * row.spread), row.output_tokens)
        return Request(index, (-1 - index, *longest[1:prompt]), answer)

    return Plan(tuple(request(index) for index in range(row.concurrency * rounds)), row.concurrency)


def _means(answers: list[Answer]) -> Means:
    refusals = {answer.refusal for answer in answers if answer.refusal}
    if refusals:
        raise ValueError(f"the emulator refused: {refusals}")
    ttft = sum(answer.token_ns[0] - answer.sent_ns for answer in answers) / len(answers)
    tpot = sum((a.token_ns[-1] - a.token_ns[0]) / (a.output_tokens - 1) for a in answers) / len(answers)
    return Means(ttft / 1e6, tpot / 1e6)
