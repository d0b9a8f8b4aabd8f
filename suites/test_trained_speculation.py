"""Speculative decoding with trained models: a longer draft is accepted less, and stops paying.

Each line of the language has seven tokens that follow by copying and two that need arithmetic, at which a draft ends.
So a longer draft has a smaller share of accepted tokens. Whether it pays is measured and stated, not claimed.
"""

from types import SimpleNamespace

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, sharegpt, vllm

MODELS = "suites/models"
CHAINS = "suites/tasks/sums_chains.json"
TOKENS = (1, 3, 5, 7)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
CASES = by_kind(cpu={"requests": 16, "together": 8})


def plain() -> EngineSpec:
    # vLLM drops async scheduling for draft models; dropped on both sides, so that one thing differs.
    return vllm(f"{MODELS}/sums", max_model_len=512, async_scheduling=False)


def drafting(tokens: int) -> EngineSpec:
    draft = {"method": "draft_model", "model": f"{MODELS}/sums-draft", "num_speculative_tokens": tokens}
    return plain().with_flags(speculative_config=draft)


@CASES
def test_draft_model_is_accepted_in_part(case: SimpleNamespace, perf: Perf) -> None:
    chains = sharegpt(path=CHAINS, arrivals=closed(1), requests=case.requests)
    run = perf.measure(drafting(3), chains)
    perf.check(run, "spec_acceptance_rate >= 30%", "spec_acceptance_rate <= 90%", "error_rate == 0")


@CASES
def test_longer_drafts_are_accepted_less(case: SimpleNamespace, perf: Perf) -> None:
    chains = sharegpt(path=CHAINS, arrivals=closed(1), requests=case.requests)
    one, three, five, seven = (perf.measure(drafting(tokens), chains) for tokens in TOKENS)
    without = perf.measure(plain(), chains)
    perf.compare(
        "spec_acceptance_rate(one) / spec_acceptance_rate(three) >= 1.05",
        "spec_acceptance_rate(three) / spec_acceptance_rate(five) >= 1.05",
        "spec_acceptance_rate(five) / spec_acceptance_rate(seven) >= 1.05",
        *(f"tpot_mean(without) / tpot_mean({name})" for name in ("one", "three", "five", "seven")),
        one=one, three=three, five=five, seven=seven, without=without,
    )


@CASES
def test_drafts_of_a_crowd_are_reported(case: SimpleNamespace, perf: Perf) -> None:
    crowd = sharegpt(path=CHAINS, arrivals=closed(case.together), requests=2 * case.together)
    ngram = perf.measure(plain().with_flags(speculative_config=NGRAM), crowd)
    draft = perf.measure(drafting(3), crowd)
    without = perf.measure(plain(), crowd)
    perf.compare(
        "output_throughput(draft) / output_throughput(without)",
        "output_throughput(ngram) / output_throughput(without)",
        draft=draft, ngram=ngram, without=without,
    )
