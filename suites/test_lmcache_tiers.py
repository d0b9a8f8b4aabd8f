"""The tiers of a cache: the engine's memory, the host's, a disk. Each is sooner than the next, and outlives less."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, random_tokens, sglang, vllm

RUNS = 5  # on one server start these cost little, and three would leave a wide interval


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    context: int = 16384
    #: The engine's own cache must hold RUNS × documents × prompt, or the first run's is gone when it is asked for.
    prompt: int = 8000
    documents: int = 6
    chunk: int = 256
    host_gb: int = 48
    sglang_flags: dict[str, Any] = field(default_factory=dict)
    limit_from_disk: str = " >= 1"

    @property
    def chunks(self) -> int:
        """Whole chunks of all documents."""
        return self.documents * (self.prompt // self.chunk)


HOPPER = Case(limit_from_disk="")  # computes a prompt about as fast as one drive reads it: the ratio is reported
CASES = by_kind(
    cpu=Case("tiny", 4096, prompt=2000, documents=10, chunk=128, host_gb=1, sglang_flags={"max_total_tokens": 120000}),
    l4=Case("phi-4-mini", prompt=4000, documents=3, host_gb=16),
    a100=Case(), h100=HOPPER, h200=HOPPER,
)  # fmt: skip
# Of the module's scope, so that both tests of an engine come one after the other, and on one start.
ENGINES = pytest.mark.parametrize("engine_name", ["vllm", "sglang"], scope="module")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the disk tier, some GB of it on a GPU, and gone afterwards."""
    folder = tmp_path_factory.mktemp("kv")
    yield folder
    shutil.rmtree(folder)


def tiered(engine_name: str, case: Case, disk: Path) -> EngineSpec:
    engine = (
        vllm(case.model, max_model_len=case.context)
        if engine_name == "vllm"
        else sglang(case.model, context_length=case.context, **case.sglang_flags)
    )
    return engine.with_lmcache(chunk_size=case.chunk, l1_size_gb=case.host_gb, l2_path=str(disk / engine_name))


def found(case: Case, l2_chunks: int) -> list[str]:
    """All whole chunks were found outside the engine, and so many of them on the disk."""
    return [f"external_cached_tokens == {case.chunks * case.chunk}", f"lmcache_l2_chunks == {l2_chunks}",
            "error_rate == 0"]


@CASES
@ENGINES
def test_each_tier_is_sooner_than_the_next(engine_name: str, case: Case, disk: Path, perf: Perf) -> None:
    engine = tiered(engine_name, case, disk)
    documents = random_tokens(input=case.prompt, output=4, arrivals=closed(1), requests=case.documents)

    cold = perf.measure(engine, documents, runs=RUNS, keep=("engine", "l1", "l2"))
    own_memory = perf.measure(engine, documents, runs=RUNS, keep=("engine", "l1", "l2"))
    memory = perf.measure(engine, documents, runs=RUNS, keep=("l1", "l2"))
    stored = perf.measure(engine, documents, runs=RUNS, keep=("l2",))

    # A page of SGLang holds one token, so two prompts that begin alike by chance share one.
    perf.check(cold, "prefix_cache_hit_rate <= 1%", "external_cached_tokens == 0", "error_rate == 0")
    perf.check(own_memory, "external_cached_tokens == 0", "prefix_cache_hit_rate >= 90%", "error_rate == 0")
    perf.check(memory, *found(case, l2_chunks=0))
    perf.check(stored, *found(case, l2_chunks=case.chunks))
    perf.compare(
        "ttft_p50(memory) / ttft_p50(own) >= 1",
        "ttft_p50(stored) / ttft_p50(memory) >= 1",
        f"ttft_p50(cold) / ttft_p50(stored){case.limit_from_disk}",
        own=own_memory, memory=memory, stored=stored, cold=cold,
    )  # fmt: skip


@CASES
@ENGINES
@pytest.mark.not_emulated("an emulated LMCache ends with its engine")
def test_what_was_computed_outlives_the_engine(engine_name: str, case: Case, disk: Path, perf: Perf) -> None:
    engine = tiered(engine_name, case, disk)
    documents = random_tokens(input=case.prompt, output=4, arrivals=closed(1), requests=case.documents)
    cold = perf.measure(engine, documents, runs=1)
    engine_anew = perf.measure(engine, documents, runs=1, fresh=True, keep=("l1", "l2"))
    both_anew = perf.measure(engine, documents, runs=1, fresh=True, keep=("l2",))
    perf.check(cold, "external_cached_tokens == 0", "error_rate == 0")
    perf.check(engine_anew, *found(case, l2_chunks=0))
    perf.check(both_anew, *found(case, l2_chunks=case.chunks))
