"""Speculative decoding with trained models: a longer draft is accepted less, and stops paying.

Each line of the language has seven tokens that follow by copying and two that need arithmetic, at which a draft ends.
So a longer draft has a smaller share of accepted tokens. Whether it pays is measured and stated, not claimed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import pytest

from pytest_llmperf import Arrivals, EngineSpec, Measurement, Perf, Workload, by_kind, closed, poisson, sharegpt, vllm

MODELS = "suites/models"
DRAFTS = {
    "draft_model": {"model": f"{MODELS}/sums-draft"},
    "eagle3": {"model": f"{MODELS}/sums-eagle3"},
    "ngram": {"prompt_lookup_max": 4, "prompt_lookup_min": 1},
}


@dataclass(frozen=True)
class Case:
    requests: int = 64
    together: int = 32


CASES = by_kind(cpu=Case(requests=16, together=8), h100=Case(), h200=Case())
pytestmark = pytest.mark.not_emulated("the emulator accepts drafts by a rate that the test would have to state")


def plain() -> EngineSpec:
    # vLLM drops async scheduling for draft models; dropped on both sides, so that one thing differs.
    return vllm(f"{MODELS}/sums", max_model_len=512, async_scheduling=False)


def drafting(tokens: int, method: str = "draft_model") -> EngineSpec:
    return plain().with_flags(speculative_config={"method": method, "num_speculative_tokens": tokens, **DRAFTS[method]})


def chains(case: Case, arrivals: Arrivals) -> Workload:
    return sharegpt(path="suites/tasks/sums_chains.json", arrivals=arrivals, requests=case.requests)


def measure_drafts(case: Case, perf: Perf, method: str = "draft_model") -> dict[str, Measurement]:
    return {f"of_{tokens}": perf.measure(drafting(tokens, method), chains(case, closed(1))) for tokens in (1, 3, 5, 7)}


def accepted_less(drafts: Iterable[str]) -> list[str]:
    """Each draft has a smaller share of accepted tokens than the next shorter draft."""
    return [f"spec_acceptance_rate({longer}) / spec_acceptance_rate({shorter}) <= 1"
            for shorter, longer in pairwise(drafts)]


@CASES
def test_draft_model_is_accepted_in_part(case: Case, perf: Perf) -> None:
    run = perf.measure(drafting(3), chains(case, closed(1)))
    perf.check(run, "spec_acceptance_rate >= 30%", "spec_acceptance_rate <= 90%", "error_rate == 0")


@CASES
def test_longer_drafts_are_accepted_less(case: Case, perf: Perf) -> None:
    drafts = measure_drafts(case, perf)
    without = perf.measure(plain(), chains(case, closed(1)))
    perf.compare(*accepted_less(drafts), **drafts)
    perf.compare(*(f"tpot_mean(without) / tpot_mean({name})" for name in drafts), without=without, **drafts)


@CASES
def test_longer_drafts_of_trained_head_are_accepted_less(case: Case, perf: Perf) -> None:
    """An EAGLE-3 head reads hidden states of the target, and was trained for an acceptance between 30 and 90 %."""
    drafts = measure_drafts(case, perf, "eagle3")
    perf.check(drafts["of_3"], "spec_acceptance_rate >= 30%", "spec_acceptance_rate <= 90%", "error_rate == 0")
    perf.compare(*accepted_less(drafts), **drafts)


@CASES
def test_longer_drafts_of_lookup_are_accepted_less(case: Case, perf: Perf) -> None:
    """A lookup finds the last tokens earlier in the text. It has no expected acceptance."""
    drafts = measure_drafts(case, perf, "ngram")
    perf.compare(*accepted_less(drafts), **drafts)


@CASES
def test_gain_of_trained_drafts_is_reported_at_each_rate(case: Case, perf: Perf) -> None:
    """Beside a lookup in the prompt, at 1, 4 and 10 requests a second and with all at once: the gain is reported."""
    engines = {"without": plain(), "draft": drafting(3), "lookup": drafting(3, "ngram")}
    loads = {rate: chains(case, poisson(rate)) for rate in (1, 4, 10)} | {"all": chains(case, closed(case.together))}
    for sides in perf.measure_each(engines, loads, runs=2).values():
        for run in sides.values():
            perf.check(run, "error_rate == 0")
        perf.compare(
            "e2el_p50(without) / e2el_p50(draft)", "output_throughput(draft) / output_throughput(without)",
            "e2el_p50(without) / e2el_p50(lookup)", "output_throughput(lookup) / output_throughput(without)", **sides,
        )
