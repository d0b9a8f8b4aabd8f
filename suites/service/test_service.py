"""A service of one's own. The file service.toml has the address, the load and the SLOs. Copy this folder first."""

import tomllib
from pathlib import Path

import pytest

from pytest_llmperf import EngineSpec, Perf, endpoint, exponential, multi_turn, poisson, random_tokens

FILE = tomllib.loads((Path(__file__).parent / "service.toml").read_text(encoding="utf-8"))
LOAD, SLOS = FILE["load"], FILE["slos"]
pytestmark = pytest.mark.skipif(not FILE["service"]["url"], reason="write the URL of your service into service.toml")


def service() -> EngineSpec:
    return endpoint(**FILE["service"])


def test_questions_are_answered_in_time(perf: Perf) -> None:
    questions = random_tokens(
        input=tuple(LOAD["words"]), output=LOAD["answer_tokens"], arrivals=poisson(LOAD["requests_per_s"]),
        requests=LOAD["requests"], text=True,
    )  # fmt: skip
    run = perf.measure(service(), questions)
    perf.check(run, *SLOS["questions"])


def test_conversations_are_answered_in_time(perf: Perf) -> None:
    """Each message comes with the answers before it, and after the pause of a reader."""
    conversations = multi_turn(
        conversations=LOAD["conversations"], turns=LOAD["turns"], input=tuple(LOAD["words"]),
        output=LOAD["answer_tokens"], arrivals=poisson(LOAD["requests_per_s"] / LOAD["turns"]),
        think_s=exponential(LOAD["think_s"]), reply="server", text=True,
    )  # fmt: skip
    run = perf.measure(service(), conversations)
    perf.check(run, *SLOS["conversations"])
