"""Energy of an output token: streams that decode together share each read of the weights."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, by_kind, closed, random_tokens, vllm

# A step of 16 streams reads the same weights as a step of one stream and takes hardly longer, so a token needs up to 16
# times less energy. The claim leaves a factor of four for attention, higher power and a step's own work.
LLAMA = {"model": "llama-3.1-8b", "context": 4096, "streams": 16, "less": 4.0}
CASES = by_kind(l4=LLAMA | {"model": "phi-4-mini"}, a100=LLAMA, h100=LLAMA, h200=LLAMA)


@CASES
def test_streams_that_decode_together_take_less_energy(case: SimpleNamespace, perf: Perf) -> None:
    if perf.emulated:
        pytest.skip("an emulated GPU draws no power")
    together = vllm(case.model, max_model_len=case.context, max_num_seqs=case.streams)
    perf.claim(
        together,
        together.with_flags(max_num_seqs=1),
        random_tokens(input=128, output=128, arrivals=closed(case.streams), requests=3 * case.streams),
        f"joules_per_token(b) / joules_per_token(a) >= {case.less}",
        mechanism=["queue_time_mean(a) <= 200ms", "queue_time_mean(b) >= 2000ms"],
        allow={"tpot_mean": 2.0},
    )
