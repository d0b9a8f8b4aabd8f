"""CUDA graphs: a decode step is one launch instead of hundreds. What that costs is start-up time and some memory."""

from dataclasses import dataclass

from pytest_llmperf import CheckResult, Perf, by_kind, closed, random_tokens, vllm


@dataclass(frozen=True)
class Case:
    blocks: int
    model: str = "llama-3.1-8b"
    context: int = 16384


# On smaller GPUs one stream's kernels take longer than their launches, and nothing is to be gained.
CASES = by_kind(h100=Case(blocks=24_000), h200=Case(blocks=54_000))


@CASES
def test_graphs_decode_faster_than_eager(case: Case, perf: Perf) -> None:
    graphs = vllm(case.model, max_model_len=case.context)
    perf.claim(
        graphs,
        graphs.with_flags(enforce_eager=True),
        random_tokens(input=128, output=64, arrivals=closed(1), requests=10),  # eager takes 19 ms a token
        "tpot_mean(b) / tpot_mean(a) >= 1.2",
        mechanism=["eager(a) == 0", "eager(b) == 1", f"kv_blocks(a) >= {case.blocks}"],
        allow={} if perf.emulated else {"startup_s": 4.0},  # an emulated server has no start-up time
    )


@CASES
def test_graphs_gain_less_in_larger_batches(case: Case, perf: Perf) -> None:
    """Eager launches take the same time for any batch; the kernels of a larger batch take longer than their launches
    sooner. So the ratio at 64 streams is below the ratio at one."""
    graphs = vllm(case.model, max_model_len=case.context)
    engines = {"replayed": graphs, "launched": graphs.with_flags(enforce_eager=True)}
    answers = {
        streams: random_tokens(input=256, output=64, arrivals=closed(streams), requests=max(4, streams))
        for streams in (1, 4, 16, 64)
    }
    gains: list[CheckResult] = []
    for sides in perf.measure_each(engines, answers, runs=2).values():
        perf.check(sides["replayed"], "eager == 0", "error_rate == 0")
        perf.check(sides["launched"], "eager == 1", "error_rate == 0")
        gains += perf.compare("itl_p50(launched) / itl_p50(replayed)", **sides)
    perf.check_smaller("gain of 64 streams < gain of one stream", gains[-1], gains[0])
