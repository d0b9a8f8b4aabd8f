"""Speculative decoding with trained models: a longer draft is accepted less, and stops paying.

Each line of the language has seven tokens that follow by copying and two that need arithmetic, at which a draft ends.
So a longer draft has a smaller share of accepted tokens. Whether it pays is measured and stated, not claimed.
"""

from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, poisson, sharegpt, vllm

MODELS = "suites/models"
CHAINS = "suites/tasks/sums_chains.json"
TOKENS = (1, 3, 5, 7)
DRAFTS = {
    "draft_model": {"model": f"{MODELS}/sums-draft"},
    "eagle3": {"model": f"{MODELS}/sums-eagle3"},
    "ngram": {"prompt_lookup_max": 4, "prompt_lookup_min": 1},
}
CASES = by_kind(
    cpu={"requests": 16, "together": 8}, h100={"requests": 64, "together": 32}, h200={"requests": 64, "together": 32}
)


@pytest.fixture(autouse=True)
def _real_engine(perf: Perf) -> None:
    if perf.emulated:
        pytest.skip("the emulator accepts drafts by a rate that the test would have to state")


def plain() -> EngineSpec:
    # vLLM drops async scheduling for draft models; dropped on both sides, so that one thing differs.
    return vllm(f"{MODELS}/sums", max_model_len=512, async_scheduling=False)


def drafting(tokens: int, method: str = "draft_model") -> EngineSpec:
    return plain().with_flags(speculative_config={"method": method, "num_speculative_tokens": tokens, **DRAFTS[method]})


def accepted_less(drafts: Iterable[str]) -> list[str]:
    """Each draft has a smaller share of accepted tokens than the next shorter draft."""
    return [f"spec_acceptance_rate({longer}) / spec_acceptance_rate({shorter}) <= 1"
            for shorter, longer in pairwise(drafts)]


@CASES
def test_draft_model_is_accepted_in_part(case: SimpleNamespace, perf: Perf) -> None:
    chains = sharegpt(path=CHAINS, arrivals=closed(1), requests=case.requests)
    run = perf.measure(drafting(3), chains)
    perf.check(run, "spec_acceptance_rate >= 30%", "spec_acceptance_rate <= 90%", "error_rate == 0")


@CASES
def test_longer_drafts_are_accepted_less(case: SimpleNamespace, perf: Perf) -> None:
    chains = sharegpt(path=CHAINS, arrivals=closed(1), requests=case.requests)
    drafts = {f"of_{tokens}": perf.measure(drafting(tokens), chains) for tokens in TOKENS}
    without = perf.measure(plain(), chains)
    perf.compare(*accepted_less(drafts), **drafts)
    perf.compare(*(f"tpot_mean(without) / tpot_mean({name})" for name in drafts), without=without, **drafts)


@CASES
@pytest.mark.parametrize("method", ["eagle3", "ngram"])
def test_longer_drafts_of_head_or_lookup_are_accepted_less(method: str, case: SimpleNamespace, perf: Perf) -> None:
    """An EAGLE-3 head reads hidden states of the target; a lookup finds the last tokens earlier in the text.

    The head was trained for an acceptance between 30 and 90 %. The lookup has no expected acceptance.
    """
    chains = sharegpt(path=CHAINS, arrivals=closed(1), requests=case.requests)
    drafts = {f"of_{tokens}": perf.measure(drafting(tokens, method), chains) for tokens in TOKENS}
    if method == "eagle3":
        perf.check(drafts["of_3"], "spec_acceptance_rate >= 30%", "spec_acceptance_rate <= 90%", "error_rate == 0")
    perf.compare(*accepted_less(drafts), **drafts)


@CASES
def test_gain_of_trained_drafts_is_reported_at_each_rate(case: SimpleNamespace, perf: Perf) -> None:
    """Beside a lookup in the prompt, at 1, 4 and 10 requests a second and with all at once: the gain is reported."""
    arrivals = (poisson(1), poisson(4), poisson(10), closed(case.together))
    loads = [sharegpt(path=CHAINS, arrivals=each, requests=case.requests) for each in arrivals]
    # One engine after the other: all loads of an engine need one start.
    specs = (plain(), drafting(3), drafting(3, "ngram"))
    measured = [[perf.measure(spec, load, runs=2) for load in loads] for spec in specs]
    for without, draft, lookup in zip(*measured, strict=True):
        for run in (without, draft, lookup):
            perf.check(run, "error_rate == 0")
        perf.compare(
            "e2el_p50(without) / e2el_p50(draft)", "output_throughput(draft) / output_throughput(without)",
            "e2el_p50(without) / e2el_p50(lookup)", "output_throughput(lookup) / output_throughput(without)",
            without=without, draft=draft, lookup=lookup,
        )
