"""Energy and cost of a run from what the GPU's driver said and from a stated price."""

import pytest

from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.energy import BY_COUNTER, BY_POWER, GPU_HOUR_PRICE, GPUS, energy_values, gpu_counters
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.telemetry import GpuSample
from pytest_llmperf.testing.records import make_record

S = 10**9
BEGIN_NS, END_NS = 1 * S, 9 * S


def samples(power_w=lambda _at_s: 600.0, energy_j=lambda at_s: 600.0 * at_s, device=0, times_s=range(11)):
    return [GpuSample(at_s * S, device, power_w=power_w(at_s), energy_j=energy_j(at_s)) for at_s in times_s]


def test_constant_power_is_the_energy_by_both_sources():
    assert gpu_counters(samples(), BEGIN_NS, END_NS) == {BY_COUNTER: 4800.0, BY_POWER: 4800.0}


def test_ends_of_a_run_are_interpolated_between_samples():
    ramp = samples(power_w=lambda at_s: 100.0 * at_s, energy_j=lambda at_s: 50.0 * at_s**2, times_s=range(0, 12, 2))
    energies = gpu_counters(ramp, BEGIN_NS, END_NS)
    assert energies[BY_POWER] == pytest.approx(50 * (81 - 1))  # exact for a straight line
    assert energies[BY_COUNTER] == pytest.approx(50 * ((64 + 100) / 2 - (0 + 4) / 2))


def test_energies_of_several_gpus_are_added():
    both = [*samples(), *samples(energy_j=lambda at_s: 300.0 * at_s, power_w=lambda _: 300.0, device=1)]
    assert gpu_counters(both, BEGIN_NS, END_NS) == {BY_COUNTER: 7200.0, BY_POWER: 7200.0}


def test_source_that_one_gpu_lacks_is_absent():
    both = [*samples(), *samples(energy_j=lambda _: None, device=1)]
    assert gpu_counters(both, BEGIN_NS, END_NS) == {BY_POWER: 9600.0}


@pytest.mark.parametrize("energy_j", [lambda _: None, lambda _: 5.0, lambda at_s: 100.0 * at_s % 500],
                         ids=["missing", "standing still", "reset"])
def test_unusable_counter_is_absent(energy_j):
    assert gpu_counters(samples(energy_j=energy_j), BEGIN_NS, END_NS) == {BY_POWER: 4800.0}


@pytest.mark.parametrize("times_s", [(), (5,), range(3, 11), range(8)], ids=["none", "one", "late", "early"])
def test_samples_that_do_not_cover_the_run_give_no_energy(times_s):
    assert gpu_counters(samples(times_s=times_s), BEGIN_NS, END_NS) == {}


@pytest.mark.parametrize(("percentages", "mean"), [((80, 80), 0.8), ((100, 0), 0.5), ((0, 0), 0.0), ((90, None), None)])
def test_utilization_is_mean_of_gpus_and_absent_with_unseen_gpu(percentages, mean):
    both = [GpuSample(at_s * S, device, utilization_pct=percent) for at_s in range(11)
            for device, percent in enumerate(percentages)]
    assert gpu_counters(both, BEGIN_NS, END_NS) == ({} if mean is None else {"gpu_utilization": mean})


def test_utilization_is_weighted_by_time():
    half = [GpuSample(at_s * S, 0, utilization_pct=100 if at_s > 5 else 0) for at_s in range(11)]
    assert gpu_counters(half, BEGIN_NS, END_NS)["gpu_utilization"] == pytest.approx(3.5 / 8)


@pytest.mark.parametrize(("counters", "expected"), [
    ({BY_COUNTER: 480.0, BY_POWER: 600.0}, {"energy_j": 480.0, "joules_per_token": 0.48, "energy_gap": 0.25}),
    ({BY_POWER: 600.0}, {"energy_j": 600.0, "joules_per_token": 0.6, "energy_gap": None}),
    ({BY_COUNTER: 480.0}, {"energy_j": 480.0, "joules_per_token": 0.48, "energy_gap": None}),
    ({}, {"energy_j": None, "joules_per_token": None, "energy_gap": None}),
])
def test_counter_is_preferred_to_sampled_power(counters, expected):
    values = energy_values(counters, 1000, 10.0)
    assert values == pytest.approx(expected | {"cost_per_million_tokens": None, "gpu_utilization": None})


def test_cost_is_priced_gpu_time_per_token():
    counters = {GPUS: 2, GPU_HOUR_PRICE: 1.8}
    assert energy_values(counters, 1000, 10.0)["cost_per_million_tokens"] == pytest.approx(10.0)
    assert energy_values(counters, 4000, 10.0)["cost_per_million_tokens"] == pytest.approx(2.5)


@pytest.mark.parametrize(("tokens", "duration_s"), [(None, 10.0), (0, 10.0), (1000, None)])
def test_run_without_tokens_or_duration_has_no_values_per_token(tokens, duration_s):
    values = energy_values({BY_COUNTER: 480.0, GPUS: 1, GPU_HOUR_PRICE: 2.5}, tokens, duration_s)
    assert values["cost_per_million_tokens"] is None
    assert (values["joules_per_token"] is None) == (not tokens)


def test_tokens_of_failed_requests_do_not_count():
    served, failed = make_record(0, chunks=8), make_record(1, chunks=8, outcome=Outcome.RESET)
    assert measure([served, failed], {BY_COUNTER: 4.0}).value("joules_per_token") == 0.5
