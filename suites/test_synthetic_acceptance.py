"""Speculative decoding at a known acceptance: speed follows the accepted length, and stops paying in a crowd.

The engine draws how many drafts it accepts, so that the length is what the test says, whatever the weights answer.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmperf import CheckResult, EngineSpec, Perf, by_kind, closed, poisson, random_tokens, vllm
from pytest_llmperf.judging.compared_sides import ratio_is_smaller

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
EACH = 0.65  # chance of a draft token after accepted ones: usual for n-grams, and stated here, not measured
TOKENS = (1, 3, 5, 7)
CROWDS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192)
SLACK = 0.25  # of a length: an n-gram that ends early drafts fewer tokens

LLAMA = {
    "model": "llama-3.1-8b", "context": 8192, "input": 256, "output": 128, "crowd": 192, "faster": 1.15, "scale": 1.0,
}  # fmt: skip
CASES = by_kind(
    l4=LLAMA | {"model": "phi-4-mini", "scale": 0.2},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)


def plain(case: SimpleNamespace) -> EngineSpec:
    # vLLM drops async scheduling for n-gram drafts; dropped on both sides, so that one thing differs.
    return vllm(case.model, max_model_len=case.context, async_scheduling=False)


def drafting(case: SimpleNamespace, length: float) -> EngineSpec:
    return synthetic(case, synthetic_acceptance_length=length)


def synthetic(case: SimpleNamespace, **settings: Any) -> EngineSpec:
    return plain(case).with_flags(
        speculative_config=NGRAM | {"rejection_sample_method": "synthetic"} | settings
    )


def drafts_of(case: SimpleNamespace, tokens: int) -> EngineSpec:
    """Drafts of `tokens` tokens, each accepted with `EACH` if all before it were."""
    rates = [round(EACH ** (position + 1), 4) for position in range(tokens)]
    return synthetic(case, num_speculative_tokens=tokens, synthetic_acceptance_rates=rates)


def accepted_length(tokens: int) -> float:
    """1 + p + p² + …, of a draft of so many tokens."""
    return float(sum(EACH**position for position in range(tokens + 1)))


def accepts(side: str, length: float) -> list[str]:
    metric = f"spec_acceptance_length({side})"
    return [f"{metric} >= {length - SLACK:g}", f"{metric} <= {length + SLACK:g}"]


def announce(case: SimpleNamespace, perf: Perf) -> None:
    """The servers of the claims below, which start at the same time once."""
    perf.together(plain(case), *(drafting(case, length) for length in (1.5, 2.5, 3.5)))


@CASES
def test_short_drafts_pay_for_one_stream(case: SimpleNamespace, perf: Perf) -> None:
    announce(case, perf)
    perf.claim(
        drafting(case, 1.5),
        plain(case),
        random_tokens(input=case.input, output=case.output, arrivals=closed(1), requests=12),
        f"tpot_mean(b) / tpot_mean(a) >= {case.faster}",
        mechanism=accepts("a", 1.5),
    )


@CASES
def test_short_drafts_pay_for_no_crowd(case: SimpleNamespace, perf: Perf) -> None:
    announce(case, perf)
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
    announce(case, perf)
    perf.claim(
        drafting(case, longer),
        drafting(case, shorter),
        random_tokens(input=case.input, output=case.output, arrivals=closed(1), requests=12),
        f"tpot_mean(b) / tpot_mean(a) >= {0.8 * longer / shorter:.3g}",
        mechanism=accepts("a", longer) + accepts("b", shorter),
    )


@CASES
def test_drafts_pay_at_a_low_rate(case: SimpleNamespace, perf: Perf) -> None:
    """A verification reads the weights once for all draft tokens, so drafts are cheap until the arithmetic of the batch
    takes longer than the weights. How much is gained at 4 and 10 requests a second is reported."""
    answers = {
        rate: random_tokens(
            input=case.input, output=case.output, arrivals=poisson(rate * case.scale), requests=20
        )
        for rate in (1, 4, 10)
    }
    specs = {"without": plain(case)} | {f"of_{tokens}": drafts_of(case, tokens) for tokens in TOKENS}
    # All rates of one engine, then of the next: where the engines do not live together, each needs one start.
    by_spec = {
        spec: {rate: perf.measure(spec, answers[rate], runs=2) for rate in answers}
        for spec in perf.together(*specs.values())
    }
    measured = {name: by_spec[spec] for name, spec in specs.items()}
    for rate in answers:
        sides = {name: by_rate[rate] for name, by_rate in measured.items()}
        for tokens in TOKENS:
            least, most = (share * accepted_length(tokens) for share in (0.85, 1.15))
            perf.check(
                sides[f"of_{tokens}"], f"spec_acceptance_length >= {least:.3g}",
                f"spec_acceptance_length <= {most:.3g}", "error_rate == 0",
            )
        limit = " >= 1.1" if rate == 1 else ""
        names = [name for name in sides if name != "without"]
        perf.compare(
            *(f"tpot_mean(without) / tpot_mean({name}){limit}" for name in names),
            *(f"e2el_p50(without) / e2el_p50({name})" for name in names),
            **sides,
        )


@CASES
@pytest.mark.parametrize("tokens", TOKENS)
def test_crowd_in_which_drafts_stop_to_pay_is_found(tokens: int, case: SimpleNamespace, perf: Perf) -> None:
    """A bisection over crowds of 1, 2, 4, … 192 streams: the rows show the gain in each crowd that was tried."""
    crowds = {
        streams: random_tokens(input=64, output=32, arrivals=closed(streams), requests=max(12, streams))
        for streams in CROWDS
    }
    perf.together(plain(case), drafts_of(case, tokens))
    without = {streams: perf.measure(plain(case), crowd) for streams, crowd in crowds.items()}

    def gain(streams: int, limit: str = "") -> CheckResult:
        drafts = perf.measure(drafts_of(case, tokens), crowds[streams])
        (ratio,) = perf.compare(
            f"output_throughput(drafts) / output_throughput(without){limit}", without=without[streams], drafts=drafts
        )
        return ratio

    # An invalid run has no ratio: the comparison is an ERROR, and the search ends.
    alone = gain(CROWDS[0], " >= 1.0")
    if alone.estimate is None:
        return
    largest = gain(CROWDS[-1])
    perf.record(ratio_is_smaller("gain of the largest crowd < gain of one stream", largest, alone))
    if largest.estimate is None or largest.estimate >= 1:
        return  # they pay in the largest crowd, too
    pays, stops = 0, len(CROWDS) - 1
    while stops - pays > 1:
        between = (pays + stops) // 2
        ratio = gain(CROWDS[between])
        if ratio.estimate is None:
            return
        pays, stops = (between, stops) if ratio.estimate >= 1 else (pays, between)
