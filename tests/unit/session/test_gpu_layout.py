"""The GPU sets of a host on which two builds are compared."""

import pytest

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.spec import vllm
from pytest_llmperf.session.gpu_layout import GpuLayout
from pytest_llmperf.session.server_gpus import ServerGpus
from pytest_llmperf.telemetry.accelerators import Accelerators
from pytest_llmperf.telemetry.hardware import VARIABLE, detect
from pytest_llmperf.testing.fake_nvml import FakeGpu, FakeNvml

SMALL, LARGE = (vllm("llama-3.1-8b", **flags).on("h200") for flags in ({}, {"tensor_parallel_size": 2}))


@pytest.fixture
def host(monkeypatch):
    """The GPUs of a session on a host of four, of which the named ones are in use when the session begins."""

    def host(*in_use, visible="", compares=True):
        monkeypatch.delenv(VARIABLE, raising=False)
        if visible:
            monkeypatch.setenv(VARIABLE, visible)
        nvml = FakeNvml([FakeGpu(uuid=f"GPU-{number}", used_bytes=(8 << 30) * (number in in_use))
                         for number in range(4)])
        accelerators = Accelerators(detect(nvml), VirtualClock(), lambda _: None, 0.2, 256 << 20, 60.0, nvml)
        return ServerGpus(Settings(), accelerators.hardware, accelerators, lambda _: None, compares=compares)

    return host


@pytest.mark.parametrize(("spec", "in_use", "visible", "sets"), [
    (SMALL, (), "", (0, 1, 2, 3)), (LARGE, (), "", (0, 1)), (SMALL, (2,), "", (0, 1, 3)), (LARGE, (2,), "", (0,)),
    (SMALL, (0,), "", (0, 1, 2, 3)),  # the session waits for its first GPU, as without other GPUs
    (SMALL, (), "3,1", (0, 1)), (vllm("m", device_ids="1").on("h200"), (), "", (0,)),
    (vllm("m", env={VARIABLE: "2,3"}).on("h200"), (), "", (0,)), (vllm("m").on("cpu"), (), "", (0,)),
])
def test_gpu_sets_that_others_use_or_a_spec_names_take_no_part(host, spec, in_use, visible, sets):
    assert host(*in_use, visible=visible).sets(spec) == sets


@pytest.mark.parametrize(("spec", "gpu_set", "visible", "indices", "shown"), [
    (SMALL, 0, "", [0], None), (SMALL, 2, "", [2], "2"), (LARGE, 1, "", [2, 3], "2,3"), (SMALL, 1, "3,1", [1], "1"),
    (SMALL, 1, "GPU-2,GPU-0", [0], "GPU-0"),
])
def test_server_of_a_later_set_is_shown_its_gpus_alone(host, spec, gpu_set, visible, indices, shown):
    gpus, (pair, *_) = host(visible=visible), GpuLayout((gpu_set,)).placements(spec, spec)
    assert [gpu.index for gpu in gpus.of(pair[0][0])] == indices
    assert gpus.shown(pair[0][0]).get(VARIABLE) == shown


def test_memory_is_divided_among_the_servers_of_each_set(host):
    reference = SMALL.with_installation("reference")
    (pairs,) = GpuLayout((0, 1)).placements(SMALL, reference)
    shares = host().share([spec for pair in pairs for spec in pair], in_turn=False)
    alone = host().share([SMALL, reference], in_turn=False)
    assert [spec.flags for spec in shares.specs] == [spec.flags for spec in alone.specs] * 2
    assert [spec.gpu_set for spec in shares.specs] == [0, 0, 1, 1]


def test_server_that_has_a_set_alone_takes_its_whole_memory(host):
    ((pair,), _) = GpuLayout((0, 1), exchanged=True).placements(SMALL, SMALL.with_installation("reference"))
    assert host().share(pair, in_turn=False).specs == pair


def test_neighbouring_sets_are_exchanged():
    reference = SMALL.with_installation("reference")
    placements = GpuLayout((0, 1, 2, 3), exchanged=True).placements(SMALL, reference)
    assert [[(a.gpu_set, b.gpu_set) for a, b in pairs] for pairs in placements] == [
        [(0, 1), (2, 3)], [(1, 0), (3, 2)]]


def test_each_round_has_three_pairs_a_set_and_spends_a_part_of_the_error():
    assert GpuLayout((0, 1, 2, 3)).looks == {12: 0.4, 24: 0.8, 36: 1.0}
