"""The tiers of a cache: the engine's memory, the host's, a disk. Each is sooner than the next, and outlives less."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, random_tokens, sglang, vllm

# The engine's own cache must hold what all runs send (RUNS × documents × prompt), or the first run's is gone when it is
# asked for again.
LLAMA = {
    "model": "llama-3.1-8b", "context": 16384, "prompt": 8000, "documents": 6, "chunk": 256, "host_gb": 48,
    "flags": {"vllm": {}, "sglang": {}}, "from_disk": " >= 1",
}  # fmt: skip
# These compute a prompt about as fast as one drive reads what was kept of it, so that ratio is told, and not judged.
HOPPER = LLAMA | {"from_disk": ""}
CASES = by_kind(
    cpu={
        "model": "tiny", "context": 4096, "prompt": 2000, "documents": 10, "chunk": 128, "host_gb": 1,
        "flags": {"vllm": {}, "sglang": {"max_total_tokens": 120000}},
        "from_disk": " >= 1",
    },
    l4=LLAMA | {"model": "phi-4-mini", "prompt": 4000, "documents": 3, "host_gb": 16},
    a100=LLAMA,
    h100=HOPPER,
    h200=HOPPER,
)  # fmt: skip
RUNS = 5  # on one server start these cost little, and three would leave a wide interval
# Of the module's scope, so that both tests of an engine come one after the other, and on one start.
ENGINES = pytest.mark.parametrize("engine_name", ["vllm", "sglang"], scope="module")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the disk tier, some GB of it on a GPU, and gone afterwards."""
    folder = tmp_path_factory.mktemp("kv")
    yield folder
    shutil.rmtree(folder)


def tiered(engine_name: str, case: SimpleNamespace, disk: Path) -> EngineSpec:
    flags = case.flags[engine_name]
    engine = (
        vllm(case.model, max_model_len=case.context, **flags)
        if engine_name == "vllm"
        else sglang(case.model, context_length=case.context, **flags)
    )
    return engine.with_lmcache(chunk_size=case.chunk, l1_size_gb=case.host_gb, l2_path=str(disk / engine_name))


def chunks(case: SimpleNamespace) -> int:
    """Whole ones of all documents."""
    return int(case.documents * (case.prompt // case.chunk))


def stored_tokens(case: SimpleNamespace) -> int:
    """Tokens that they hold."""
    return chunks(case) * int(case.chunk)


@CASES
@ENGINES
def test_each_tier_is_sooner_than_the_next(
    engine_name: str, case: SimpleNamespace, disk: Path, perf: Perf
) -> None:
    engine = tiered(engine_name, case, disk)
    documents = random_tokens(input=case.prompt, output=4, arrivals=closed(1), requests=case.documents)

    cold = perf.measure(engine, documents, runs=RUNS, keep=("engine", "l1", "l2"))
    own_memory = perf.measure(engine, documents, runs=RUNS, keep=("engine", "l1", "l2"))
    memory = perf.measure(engine, documents, runs=RUNS, keep=("l1", "l2"))
    stored = perf.measure(engine, documents, runs=RUNS, keep=("l2",))

    # A page of SGLang holds one token, so two prompts that begin alike by chance share one.
    perf.check(cold, "prefix_cache_hit_rate <= 1%", "external_cached_tokens == 0", "error_rate == 0")
    perf.check(own_memory, "external_cached_tokens == 0", "prefix_cache_hit_rate >= 90%", "error_rate == 0")
    perf.check(memory, f"external_cached_tokens == {stored_tokens(case)}", "lmcache_l2_chunks == 0", "error_rate == 0")
    perf.check(
        stored,
        f"external_cached_tokens == {stored_tokens(case)}",
        f"lmcache_l2_chunks == {chunks(case)}",
        "error_rate == 0",
    )
    perf.compare(
        "ttft_p50(memory) / ttft_p50(own) >= 1",
        "ttft_p50(stored) / ttft_p50(memory) >= 1",
        f"ttft_p50(cold) / ttft_p50(stored){case.from_disk}",
        own=own_memory, memory=memory, stored=stored, cold=cold,
    )  # fmt: skip


@CASES
@ENGINES
def test_what_was_computed_outlives_the_engine(
    engine_name: str, case: SimpleNamespace, disk: Path, perf: Perf
) -> None:
    if perf.emulated:
        pytest.skip("an emulated LMCache ends with its engine")
    engine = tiered(engine_name, case, disk)
    documents = random_tokens(input=case.prompt, output=4, arrivals=closed(1), requests=case.documents)
    cold = perf.measure(engine, documents, runs=1)
    engine_anew = perf.measure(engine, documents, runs=1, fresh=True, keep=("l1", "l2"))
    both_anew = perf.measure(engine, documents, runs=1, fresh=True, keep=("l2",))
    perf.check(cold, "external_cached_tokens == 0", "error_rate == 0")
    perf.check(
        engine_anew, f"external_cached_tokens == {stored_tokens(case)}", "lmcache_l2_chunks == 0", "error_rate == 0"
    )
    perf.check(
        both_anew,
        f"external_cached_tokens == {stored_tokens(case)}",
        f"lmcache_l2_chunks == {chunks(case)}",
        "error_rate == 0",
    )
