"""pytest-benchmark's JSON: a latency metric of a measurement as a benchmark, whose rounds are its runs, in seconds."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from statistics import fmean, median, stdev

from pytest_llmperf.errors import UsageError
from pytest_llmperf.report.export import Sink
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.results.reader import names, read_session
from pytest_llmperf.version import VERSION

METRICS = ("ttft_p50", "ttft_p99", "tpot_mean", "itl_p50", "itl_p99", "e2el_p50")
NO_OPTIONS = {
    "disable_gc": False, "timer": "perf_counter", "min_rounds": 1, "max_time": 0, "min_time": 0, "warmup": False,
}  # fmt: skip


def benchmark_file(tests: Sequence[TestResult]) -> bytes:
    """The file as `pytest-benchmark compare` reads it.

    Raises:
        UsageError: no test has a run with one of these metrics.
    """
    benchmarks = [benchmark for test in tests for benchmark in _benchmarks(test)]
    if not benchmarks:
        raise UsageError("the tests of this run have no measurements to export: the export contains latencies, but "
                         "not those at the rates that a search tried. Name another run.")
    runs = [run for test in tests for measurement in test.measurements for run in measurement.runs]
    content = {
        "machine_info": _machine(tests),
        "commit_info": _commit(tests[0]),
        "benchmarks": benchmarks,
        "datetime": min(run.started_at for run in runs),
        "version": f"pytest-llmperf {VERSION}",
    }
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _machine(tests: Sequence[TestResult]) -> dict[str, str]:
    """The hardware of the runs, because the file may be read on a different machine."""
    names = ("hardware", "gpu", "gpu_count", "driver", "cuda", "cpu", "cpu_cores")
    each = (measurement.conditions for test in tests for measurement in test.measurements)
    return {name: value for conditions in each for name in names if (value := conditions.get(name))}


def _commit(test: TestResult) -> dict[str, object]:
    session = read_session(test.folder) if test.folder is not None else {}
    return {
        "id": session.get("commit") or "unknown",
        "time": session.get("date"),
        "author_time": None,
        "dirty": bool(session.get("dirty")),
        "project": "",
        "branch": "(unknown)",
    }


def _benchmarks(test: TestResult) -> Iterator[dict[str, object]]:
    """All benchmarks of a test, without measurements at the rates that a search tried. Files are compared by name, and
    the next search tries other rates."""
    measured = [measurement for measurement in test.measurements if not measurement.tried]
    several = len(measured) > 1
    for name, measurement in zip(names(measured), measured, strict=True):
        side = f" {name}" if several else ""
        for metric in METRICS:
            known_s = [value / 1000 for value in measurement.values(metric) if value is not None]
            if known_s:
                yield _benchmark(test, measurement, f"{metric}{side}", known_s)


def _benchmark(
    test: TestResult, measurement: Measurement, what: str, values_s: Sequence[float]
) -> dict[str, object]:
    return {
        "group": f"{test.test} {what}",
        "name": f"{test.test.rpartition('::')[2]} {what}",
        "fullname": f"{test.test} {what}",
        "params": None,
        "param": None,
        "extra_info": {
            "verdict": test.outcome,
            "engine": measurement.engine,
            "workload": measurement.workload,
            "hardware": measurement.conditions.get("hardware", "unknown"),
        },
        "options": NO_OPTIONS,
        "stats": stats(values_s) | {"data": list(values_s), "iterations": 1},
    }


def stats(values: Sequence[float]) -> dict[str, object]:
    """pytest-benchmark's statistics of the values, one round per value, with pytest-benchmark's names and formulas."""
    ordered, mean = sorted(values), fmean(values)
    spread = stdev(values) if len(values) > 1 else 0.0
    q1, q3 = _quartiles(ordered)
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    by_spread = sum(abs(value - mean) > spread for value in values)
    by_quartiles = sum(not low <= value <= high for value in values)
    return {
        "min": ordered[0], "max": ordered[-1], "mean": mean, "stddev": spread, "rounds": len(values),
        "median": median(ordered), "iqr": q3 - q1, "q1": q1, "q3": q3, "iqr_outliers": by_quartiles,
        "stddev_outliers": by_spread, "outliers": f"{by_spread};{by_quartiles}",
        "ld15iqr": ordered[bisect_left(ordered, low)], "hd15iqr": ordered[bisect_right(ordered, high) - 1],
        "ops": 1 / mean if mean else 0, "total": sum(values),
    }  # fmt: skip


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """Medians of the halves; of an odd number the middle value belongs to both, in part (method 3)."""
    count = len(ordered)
    if count == 1:
        return ordered[0], ordered[0]
    if count % 2 == 0:
        return median(ordered[: count // 2]), median(ordered[count // 2 :])
    whole, rest = divmod(count, 4)
    if rest == 1:
        low, high = (whole - 1, 0.25), (3 * whole, 0.75)
    else:
        low, high = (whole, 0.75), (3 * whole + 1, 0.25)
    q1, q3 = (share * ordered[at] + (1 - share) * ordered[at + 1] for at, share in (low, high))
    return q1, q3


SINK = Sink(api=1, name="pytest-benchmark", files=lambda tests: {"": benchmark_file(tests)})
