"""Energy and utilization of a run's GPUs, as the driver reports them, and energy and cost of each output token.

The driver's counter (nvmlDeviceGetTotalEnergyConsumption, mJ since the driver was loaded) is preferred. The trapezoidal
integral of the sampled power checks the counter, and stands in for a missing counter. NVML averages the power of Ampere
and later GPUs over one second, so both agree only in runs of many seconds. The energy is that of whole GPUs: of idle
servers on the same GPUs too, and without CPUs, host memory and cooling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from pytest_llmperf.metrics.server import Counters, counter_difference
from pytest_llmperf.model.telemetry import GpuSample

JOULES_PER_TOKEN, COST, UTILIZATION = "joules_per_token", "cost_per_million_tokens", "gpu_utilization"
ENERGY = ("energy_j", JOULES_PER_TOKEN, "energy_gap")
#: Metrics that only a real GPU has.
OF_REAL_GPUS = (*ENERGY, UTILIZATION)
#: Metrics that a baseline stores only where the test compares them.
STORED_ON_REQUEST = (*OF_REAL_GPUS, COST)
#: A larger difference between counter and sampled power is a note of the verdict.
ENERGY_TOLERANCE = 0.1
#: Part of a run that the samples may leave out. Longer gaps at an end make its energy unknown.
UNSEEN_SHARE = 0.05
GPUS, GPU_HOUR_PRICE = "gpus", "gpu_hour_price"
#: Value of a sample, value of a GPU over the run, and value of all GPUs.
_Source = tuple[Callable[[GpuSample], float | None], Callable[..., float | None], Callable[[list[float]], float]]
BY_COUNTER, BY_POWER = "gpu_energy_counter_j", "gpu_energy_power_j"


def gpu_counters(samples: Sequence[GpuSample], begin_ns: int, end_ns: int) -> dict[str, float]:
    """Joules that all sampled GPUs used between two times, by source, and their mean utilization, 0…1.

    These are counters of a run. A source without data is absent.

    A source counts only if it covers every sampled GPU.

    Args:
        samples: of one run.
        begin_ns, end_ns: in the samples' time.
    """
    sources: Mapping[str, _Source] = {
        BY_COUNTER: (lambda sample: sample.energy_j, _increase, sum),
        BY_POWER: (lambda sample: sample.power_w, lambda *given: _integral(*given) or None, sum),
        UTILIZATION: (lambda sample: sample.utilization_pct, _mean_share, fmean),
    }
    devices = sorted({sample.device for sample in samples})
    counters: dict[str, float] = {}
    for name, (column, take, combine) in sources.items():
        by_device = [
            take([(sample.at_ns, value) for sample in samples
                  if sample.device == device and (value := column(sample)) is not None], begin_ns, end_ns)
            for device in devices
        ]
        seen = [value for value in by_device if value is not None]
        if seen and len(seen) == len(devices):
            counters[name] = combine(seen)
    return counters


def energy_values(counters: Counters, output_tokens: int | None, duration_s: float | None) -> dict[str, float | None]:
    """The metrics of GPUs and their cost; None if the driver reports nothing, or no price or no token is known.

    Args:
        counters: of a run, with the results of `gpu_counters`, the number of GPUs and the price of a GPU hour.
        output_tokens: of all served requests; None if unknown.
        duration_s: of the run.
    """
    by_counter, by_power = counter_difference(counters, BY_COUNTER), counter_difference(counters, BY_POWER)
    energy = by_power if by_counter is None else by_counter
    gpus, price = counter_difference(counters, GPUS), counter_difference(counters, GPU_HOUR_PRICE)
    priced = gpus and price and duration_s and output_tokens
    return {
        "energy_j": energy,
        JOULES_PER_TOKEN: energy / output_tokens if energy is not None and output_tokens else None,
        "energy_gap": abs(by_power / by_counter - 1) if by_counter and by_power is not None else None,
        UTILIZATION: counter_difference(counters, UTILIZATION),
        COST: gpus * price * duration_s / 3600 / output_tokens * 1e6 if priced else None,  # type: ignore[operator]
    }


Readings = Sequence[tuple[int, float]]


def _increase(readings: Readings, begin_ns: int, end_ns: int) -> float | None:
    """Increase of a counter, interpolated linearly at both ends. None if the counter decreases or stands still, or if
    its readings do not cover the time."""
    decreases = any(later < earlier for (_, earlier), (_, later) in pairwise(readings))
    if decreases or not _covers(readings, begin_ns, end_ns):
        return None
    return _at(readings, end_ns) - _at(readings, begin_ns) or None


def _integral(readings: Readings, begin_ns: int, end_ns: int) -> float | None:
    """Integral over seconds by the trapezoidal rule; None if the readings do not cover the time."""
    if not _covers(readings, begin_ns, end_ns):
        return None
    inside = [(at_ns, value) for at_ns, value in readings if begin_ns < at_ns < end_ns]
    points = [(begin_ns, _at(readings, begin_ns)), *inside, (end_ns, _at(readings, end_ns))]
    return sum((later + earlier) / 2 * (end - start) / 1e9 for (start, earlier), (end, later) in pairwise(points))


def _mean_share(readings: Readings, begin_ns: int, end_ns: int) -> float | None:
    """Mean over time of a percentage, 0…1; None if the readings do not cover the time."""
    integral = _integral(readings, begin_ns, end_ns)
    return None if integral is None else integral / 100 / ((end_ns - begin_ns) / 1e9)


def _covers(readings: Readings, begin_ns: int, end_ns: int) -> bool:
    if len(readings) < 2 or end_ns <= begin_ns:
        return False
    unseen_ns = max(0, readings[0][0] - begin_ns) + max(0, end_ns - readings[-1][0])
    return unseen_ns <= UNSEEN_SHARE * (end_ns - begin_ns)


def _at(readings: Readings, at_ns: int) -> float:
    """The value at a time, on the line through the two readings around or nearest to it."""
    later = next((i for i, (stamp_ns, _) in enumerate(readings) if stamp_ns >= at_ns), len(readings) - 1)
    (start, low), (end, high) = readings[max(1, later) - 1], readings[max(1, later)]
    return high if end == start else low + (high - low) * (at_ns - start) / (end - start)
