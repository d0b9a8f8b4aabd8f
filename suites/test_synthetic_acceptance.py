"""Speculative decoding at a known acceptance: speed follows the accepted length, and stops paying in a crowd.

The engine draws how many drafts it accepts, so that the length is what the test says, whatever the weights answer.
"""

from dataclasses import dataclass

import pytest

from pytest_llmperf import CheckResult, EngineSpec, Perf, by_kind, closed, poisson, random_tokens, vllm

EACH = 0.65  # chance of a draft token after accepted ones: usual for n-grams, and stated here, not measured
TOKENS = (1, 3, 5, 7)
CROWDS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192)


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    #: Of the rates 1, 4 and 10.
    scale: float = 1.0


CASES = by_kind(l4=Case("phi-4-mini", scale=0.2), a100=Case(), h100=Case(), h200=Case())
ONE_STREAM = random_tokens(input=256, output=128, arrivals=closed(1), requests=12)


def plain(case: Case) -> EngineSpec:
    # vLLM drops async scheduling for n-gram drafts; dropped on both sides, so that one thing differs.
    return vllm(case.model, max_model_len=8192, async_scheduling=False)


def drafting(case: Case, tokens: int = 4, **acceptance: object) -> EngineSpec:
    return plain(case).with_flags(speculative_config={
        "method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 4, "prompt_lookup_min": 1,
        "rejection_sample_method": "synthetic", **acceptance,
    })  # fmt: skip


def accepting(case: Case, length: float) -> EngineSpec:
    return drafting(case, synthetic_acceptance_length=length)


def drafts_of(case: Case, tokens: int) -> EngineSpec:
    """Drafts of `tokens` tokens, each accepted with `EACH` if all before it were."""
    return drafting(case, tokens, synthetic_acceptance_rates=[round(EACH ** (place + 1), 4) for place in range(tokens)])


def accepts(side: str, length: float) -> list[str]:
    """An n-gram that ends early drafts fewer tokens, so a quarter of a token may be missing."""
    metric = f"spec_acceptance_length({side})"
    return [f"{metric} >= {length - 0.25:g}", f"{metric} <= {length + 0.25:g}"]


def announce_claims(case: Case, perf: Perf) -> None:
    """The servers of the three claims below start at the same time, once."""
    perf.together(plain(case), *(accepting(case, length) for length in (1.5, 2.5, 3.5)))


@CASES
def test_short_drafts_pay_for_one_stream(case: Case, perf: Perf) -> None:
    announce_claims(case, perf)
    perf.claim(accepting(case, 1.5), plain(case), ONE_STREAM, "tpot_mean(b) / tpot_mean(a) >= 1.15",
               mechanism=accepts("a", 1.5))


@CASES
def test_short_drafts_pay_for_no_crowd(case: Case, perf: Perf) -> None:
    announce_claims(case, perf)
    perf.claim(
        accepting(case, 1.5),
        plain(case),
        random_tokens(input=64, output=128, arrivals=closed(192), requests=192),
        "output_throughput(a) / output_throughput(b) <= 1.0",
        mechanism=accepts("a", 1.5),
        allow={"ttft_p50": 3.0, "tpot_mean": 3.0},
    )


@CASES
@pytest.mark.parametrize(("longer", "shorter"), [(2.5, 1.5), (3.5, 2.5)])
def test_speed_follows_the_accepted_length(longer: float, shorter: float, case: Case, perf: Perf) -> None:
    announce_claims(case, perf)
    perf.claim(
        accepting(case, longer),
        accepting(case, shorter),
        ONE_STREAM,
        f"tpot_mean(b) / tpot_mean(a) >= {0.8 * longer / shorter:.3g}",
        mechanism=accepts("a", longer) + accepts("b", shorter),
    )


@CASES
def test_drafts_pay_at_a_low_rate(case: Case, perf: Perf) -> None:
    """A verification reads the weights once for all draft tokens, so drafts are cheap until the arithmetic of the batch
    takes longer than the weights. How much is gained at 4 and 10 requests a second is reported."""
    engines = {"without": plain(case)} | {f"of_{tokens}": drafts_of(case, tokens) for tokens in TOKENS}
    loads = {
        rate: random_tokens(input=256, output=128, arrivals=poisson(rate * case.scale), requests=20)
        for rate in (1, 4, 10)
    }
    for rate, sides in perf.measure_each(engines, loads, runs=2).items():
        for tokens in TOKENS:
            length = sum(EACH**place for place in range(tokens + 1))  # 1 + p + p² + …
            perf.check(sides[f"of_{tokens}"], f"spec_acceptance_length >= {0.85 * length:.3g}",
                       f"spec_acceptance_length <= {1.15 * length:.3g}", "error_rate == 0")
        limit = " >= 1.1" if rate == 1 else ""
        perf.compare(
            *(f"tpot_mean(without) / tpot_mean(of_{tokens}){limit}" for tokens in TOKENS),
            *(f"e2el_p50(without) / e2el_p50(of_{tokens})" for tokens in TOKENS),
            **sides,
        )


@CASES
@pytest.mark.parametrize("tokens", TOKENS)
def test_crowd_in_which_drafts_stop_to_pay_is_found(tokens: int, case: Case, perf: Perf) -> None:
    """A bisection over crowds of 1, 2, 4, … 192 streams: the rows show the gain in each crowd that was tried."""
    crowds = [random_tokens(input=64, output=32, arrivals=closed(streams), requests=max(12, streams))
              for streams in CROWDS]
    perf.together(plain(case), drafts_of(case, tokens))
    without = [perf.measure(plain(case), crowd) for crowd in crowds]

    def gain(place: int, limit: str = "") -> CheckResult:
        drafts = perf.measure(drafts_of(case, tokens), crowds[place])
        (ratio,) = perf.compare(f"output_throughput(drafts) / output_throughput(without){limit}",
                                without=without[place], drafts=drafts)
        return ratio

    pays, stops = 0, len(CROWDS) - 1
    alone = gain(pays, " >= 1.0")
    if alone.estimate is None:
        return  # an invalid run has no ratio: the comparison is an ERROR
    largest = gain(stops)
    perf.check_smaller("gain of the largest crowd < gain of one stream", largest, alone)
    while stops - pays > 1 and largest.estimate is not None and largest.estimate < 1:
        between = (pays + stops) // 2
        ratio = gain(between)
        if ratio.estimate is None:
            return
        pays, stops = (between, stops) if ratio.estimate >= 1 else (pays, between)
