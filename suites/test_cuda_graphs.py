"""CUDA graphs: a decode step is one launch instead of hundreds. What that costs is start-up time and some memory."""

from types import SimpleNamespace

from pytest_llmperf import CheckResult, Perf, by_kind, closed, random_tokens, vllm
from pytest_llmperf.judging.compared_sides import ratio_is_smaller

# On smaller GPUs one stream's kernels take longer than their launches, and nothing is to be gained.
LLAMA = {"model": "llama-3.1-8b", "context": 16384, "faster": 1.2, "longer_start": 4.0}
CASES = by_kind(
    h100=LLAMA | {"blocks": 24_000},
    h200=LLAMA | {"blocks": 54_000},
)


@CASES
def test_graphs_decode_faster_than_eager(case: SimpleNamespace, perf: Perf) -> None:
    graphs = vllm(case.model, max_model_len=case.context)
    eager = graphs.with_flags(enforce_eager=True)
    answers = random_tokens(input=128, output=64, arrivals=closed(1), requests=10)  # eager takes 19 ms a token
    emulated = perf.emulated  # an emulated server has no start-up time
    perf.claim(
        graphs,
        eager,
        answers,
        f"tpot_mean(b) / tpot_mean(a) >= {case.faster}",
        mechanism=["eager(a) == 0", "eager(b) == 1", f"kv_blocks(a) >= {case.blocks}"],
        allow={} if emulated else {"startup_s": case.longer_start},
    )


@CASES
def test_graphs_gain_less_in_larger_batches(case: SimpleNamespace, perf: Perf) -> None:
    """Eager launches take the same time for any batch; the kernels of a larger batch take longer than their launches
    sooner. So the ratio at 64 streams is below the ratio at one."""
    graphs = vllm(case.model, max_model_len=case.context)
    eager = graphs.with_flags(enforce_eager=True)
    gains: list[CheckResult] = []
    answers = {
        streams: random_tokens(input=256, output=64, arrivals=closed(streams), requests=max(4, streams))
        for streams in (1, 4, 16, 64)
    }
    measured = {
        spec: {streams: perf.measure(spec, workload, runs=2) for streams, workload in answers.items()}
        for spec in perf.together(graphs, eager)
    }
    with_graphs = measured[graphs]
    for streams, launched in measured[eager].items():
        replayed = with_graphs[streams]
        perf.check(replayed, "eager == 0", "error_rate == 0")
        perf.check(launched, "eager == 1", "error_rate == 0")
        gains += perf.compare("itl_p50(launched) / itl_p50(replayed)", launched=launched, replayed=replayed)
    perf.record(ratio_is_smaller("gain of 64 streams < gain of one stream", gains[-1], gains[0]))
