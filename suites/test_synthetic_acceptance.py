"""Speculative decoding at a known acceptance: speed follows the accepted length, and stops paying in a crowd.

The engine draws how many drafts it accepts, so that the length is what the test says, whatever the weights answer.
"""

from types import SimpleNamespace

import pytest

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, random_tokens, vllm

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
SLACK = 0.25  # of a length: an n-gram that ends early drafts fewer tokens

LLAMA = {"model": "llama-3.1-8b", "context": 8192, "input": 256, "output": 128, "crowd": 192, "faster": 1.15}
CASES = by_kind(
    l4=LLAMA | {"model": "phi-4-mini"},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)


def plain(case: SimpleNamespace) -> EngineSpec:
    # vLLM drops async scheduling for n-gram drafts; dropped on both sides, so that one thing differs.
    return vllm(case.model, max_model_len=case.context, async_scheduling=False)


def drafting(case: SimpleNamespace, length: float) -> EngineSpec:
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": length}
    return plain(case).with_flags(speculative_config=NGRAM | synthetic)


def accepts(side: str, length: float) -> list[str]:
    return [
        f"spec_acceptance_length({side}) >= {length - SLACK:g}",
        f"spec_acceptance_length({side}) <= {length + SLACK:g}",
    ]


@CASES
def test_short_drafts_pay_for_one_stream(case: SimpleNamespace, perf: Perf) -> None:
    perf.claim(
        drafting(case, 1.5),
        plain(case),
        random_tokens(input=case.input, output=case.output, arrivals=closed(1), requests=12),
        f"tpot_mean(b) / tpot_mean(a) >= {case.faster}",
        mechanism=accepts("a", 1.5),
    )


@CASES
def test_short_drafts_pay_for_no_crowd(case: SimpleNamespace, perf: Perf) -> None:
    crowd = random_tokens(input=64, output=128, arrivals=closed(case.crowd), requests=case.crowd)
    perf.claim(
        drafting(case, 1.5),
        plain(case),
        crowd,
        "output_throughput(a) / output_throughput(b) <= 1.0",
        mechanism=accepts("a", 1.5),
        allow={"ttft_p50": 3.0, "tpot_mean": 3.0},
    )


@CASES
@pytest.mark.parametrize(("longer", "shorter"), [(2.5, 1.5), (3.5, 2.5)])
def test_speed_follows_the_accepted_length(longer: float, shorter: float, case: SimpleNamespace, perf: Perf) -> None:
    perf.claim(
        drafting(case, longer),
        drafting(case, shorter),
        random_tokens(input=case.input, output=case.output, arrivals=closed(1), requests=12),
        f"tpot_mean(b) / tpot_mean(a) >= {0.8 * longer / shorter:.3g}",
        mechanism=accepts("a", longer) + accepts("b", shorter),
    )
