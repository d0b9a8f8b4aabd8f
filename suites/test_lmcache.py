"""LMCache: what the engine's own cache no longer has comes from host memory or disk, sooner than from a prefill."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, poisson, random_tokens, sglang, shared_prefix, vllm

LLAMA = {
    "model": "llama-3.1-8b", "context": 16384, "prefix": 8000, "rate": 2, "requests": 45, "chunk": 256, "host_gb": 32,
    "sooner": 2.0, "loss": 1.5, "documents": 20,
}  # fmt: skip
CASES = by_kind(
    cpu={
        # Beside so small a model's prefill the copying of its cache is much: 1.4× to the first token.
        "model": "tiny", "context": 4096, "prefix": 2048, "rate": 3, "requests": 18, "chunk": 128, "host_gb": 1,
        "sooner": 1.5, "loss": 2.0, "documents": 10,
    },
    l4=LLAMA | {"model": "phi-4-mini", "rate": 1, "host_gb": 16},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)  # fmt: skip


def bare(case: SimpleNamespace) -> EngineSpec:
    """Without its own prefix cache, vLLM shows what LMCache has."""
    return vllm(case.model, max_model_len=case.context, enable_prefix_caching=False)


def attached(engine: EngineSpec, case: SimpleNamespace, **more: object) -> EngineSpec:
    return engine.with_lmcache(chunk_size=case.chunk, l1_size_gb=case.host_gb, **more)


@CASES
def test_warm_prefixes_come_from_host_memory(case: SimpleNamespace, perf: Perf) -> None:
    questions = shared_prefix(
        prefix=case.prefix, suffix=(32, 96), output=4, groups=3, arrivals=poisson(case.rate), requests=case.requests
    )
    perf.claim(
        attached(bare(case), case),
        bare(case),
        questions,
        f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}",
        mechanism="external_cache_hit_rate(a) >= 70%",
        allow={"tpot_mean": 1.5},  # stores and loads run beside the streams
    )


@CASES
def test_without_reuse_little_is_lost(case: SimpleNamespace, perf: Perf) -> None:
    unique = random_tokens(input=case.prefix // 2, output=4, arrivals=poisson(case.rate), requests=case.requests)
    perf.claim(
        attached(bare(case), case),
        bare(case),
        unique,
        f"ttft_p50(a) / ttft_p50(b) <= {case.loss}",
        mechanism="external_cache_hit_rate(a) == 0",
        allow={"tpot_mean": 1.5},
    )


ENGINES = {
    "vllm": lambda case: vllm(case.model, max_model_len=case.context),
    "sglang": lambda case: sglang(case.model, context_length=case.context),
}


@CASES
@pytest.mark.parametrize("engine_name", ENGINES)
def test_what_was_computed_outlives_the_engine(engine_name: str, case: SimpleNamespace, perf: Perf) -> None:
    if perf.session.hardware.emulated:
        pytest.skip("an emulated LMCache ends with its engine")
    engine = attached(ENGINES[engine_name](case), case)
    documents = random_tokens(input=case.prefix, output=4, arrivals=closed(1), requests=case.documents)
    cold = perf.measure(engine, documents, runs=1)
    warm = perf.measure(engine, documents, runs=1, fresh=True, keep=("l1",))
    perf.check(cold, "external_cached_tokens == 0", "error_rate == 0")
    perf.check(warm, f"external_cached_tokens >= {case.documents * (case.prefix - case.chunk)}", "error_rate == 0")
