"""Energy of an output token: streams that decode together share each read of the weights."""

from dataclasses import dataclass

import pytest

from pytest_llmperf import Perf, by_kind, closed, random_tokens, vllm


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    streams: int = 16


@by_kind(l4=Case("phi-4-mini"), a100=Case(), h100=Case(), h200=Case())
@pytest.mark.not_emulated("an emulated GPU draws no power")
def test_streams_that_decode_together_take_less_energy(case: Case, perf: Perf) -> None:
    """A step of 16 streams reads the same weights as a step of one stream and takes hardly longer, so a token needs up
    to 16 times less energy. The claim leaves a factor of four for attention, higher power and a step's own work."""
    together = vllm(case.model, max_model_len=4096, max_num_seqs=case.streams)
    perf.claim(
        together,
        together.with_flags(max_num_seqs=1),
        random_tokens(input=128, output=128, arrivals=closed(case.streams), requests=3 * case.streams),
        "joules_per_token(b) / joules_per_token(a) >= 4.0",
        mechanism=["queue_time_mean(a) <= 200ms", "queue_time_mean(b) >= 2000ms"],
        allow={"tpot_mean": 2.0},
    )
