"""LMCache: what the engine's own cache no longer has comes from host memory or disk, sooner than from a prefill."""

from types import SimpleNamespace

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, poisson, random_tokens, shared_prefix, vllm

# Three runs' documents and a warm-up must fit in four fifths of the host's memory, or LMCache drops some of them.
# One prefill of another request is as long as an answer of 4 tokens: 3 emulated pairs left the ratio of mean TPOT
# between 0.02 and 1.7×. Answers of 32 tokens decide it.
# Of the first token's spread between starts, two starts a side leave 1.33×: a loss of 1.15× is proven to be below 1.6×.
LLAMA = {
    "model": "llama-3.1-8b", "context": 16384, "prefix": 8000, "arrivals": poisson(2), "requests": 45, "chunk": 256,
    "answer": 32, "host_gb": 32, "sooner": 2.0, "loss": 1.6, "documents": 4, "uneven": 7900, "chunks": (64, 256, 1024),
}  # fmt: skip
CASES = by_kind(
    cpu={
        # One request at a time, since two cores soon have a queue that hides all else. Beside so small a model's
        # prefill the copying of its cache is much: 1.2 to 1.4× to the first token of 1024.
        "model": "tiny", "context": 4096, "prefix": 2048, "arrivals": closed(1), "requests": 18, "chunk": 128,
        "answer": 4, "host_gb": 1, "sooner": 1.5, "loss": 2.0, "documents": 10, "uneven": 2000, "chunks": (128, 512),
    },
    l4=LLAMA | {"model": "phi-4-mini", "arrivals": poisson(1), "host_gb": 16, "uneven": 3900},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)  # fmt: skip


def bare(case: SimpleNamespace) -> EngineSpec:
    """Without its own prefix cache, vLLM shows what LMCache has."""
    return vllm(case.model, max_model_len=case.context, enable_prefix_caching=False)


def attached(case: SimpleNamespace) -> EngineSpec:
    return bare(case).with_lmcache(chunk_size=case.chunk, l1_size_gb=case.host_gb)


@CASES
def test_warm_prefixes_come_from_host_memory(case: SimpleNamespace, perf: Perf) -> None:
    questions = shared_prefix(
        prefix=case.prefix, suffix=(32, 96), output=case.answer, groups=3, arrivals=case.arrivals,
        requests=case.requests,
    )
    perf.claim(
        attached(case),
        bare(case),
        questions,
        f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}",
        # All but the first of each group find their prefix; two that come together may both be the first.
        mechanism=f"external_cached_tokens(a) >= {case.requests * case.prefix * 2 // 3}",
        allow={"tpot_mean": 1.5},  # stores and loads run beside the streams
    )


@CASES
def test_without_reuse_little_is_lost(case: SimpleNamespace, perf: Perf) -> None:
    unique = random_tokens(input=case.prefix // 2, output=case.answer, arrivals=case.arrivals, requests=case.requests)
    perf.claim(
        attached(case),
        bare(case),
        unique,
        f"ttft_p50(a) / ttft_p50(b) <= {case.loss}",
        mechanism="lmcache_hit_rate(a) == 0",  # of what LMCache was asked for: one that is never asked has none
        allow={"tpot_mean": 1.5},
    )


@CASES
def test_a_prompt_is_found_in_whole_chunks(case: SimpleNamespace, perf: Perf) -> None:
    """Small chunks find more of a prompt; large ones are fewer to look up and to copy. The times are reported."""
    documents = random_tokens(input=case.uneven, output=4, arrivals=closed(1), requests=case.documents)
    sides = {}
    for chunk in case.chunks:
        engine = bare(case).with_lmcache(chunk_size=chunk, l1_size_gb=case.host_gb)
        filled = perf.measure(engine, documents, keep=("l1",))
        perf.check(filled, "lmcache_evictions == 0")
        sides[f"of_{chunk}"] = perf.measure(engine, documents, keep=("l1",))
        whole = case.uneven // chunk * chunk
        perf.check(
            sides[f"of_{chunk}"], f"external_cached_tokens == {case.documents * whole}", "error_rate == 0"
        )
    smallest, *larger = sides
    perf.compare(*(f"ttft_p50({size}) / ttft_p50({smallest})" for size in larger), **sides)
