"""Numbers behind the charts of one test, few enough that two hundred tests make a small file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pytest_llmperf.metrics import FAMILIES
from pytest_llmperf.report.html.series import series_of
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.results.reader import names
from pytest_llmperf.results.requests_file import Requests, decode, start_ns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pytest_llmperf.model.record import RequestRecord

# Every second percentile, and the tail where regressions show.
PROBABILITIES = (*(position / 50 for position in range(50)), 0.99, 0.995, 0.999, 1.0)
DISTRIBUTIONS = ("ttft", "itl")
BINS = 240
DIGITS = 4


def charts(test: TestResult) -> dict[str, object]:
    """Distributions and timelines, a side a measurement.

    Raises:
        BaselineError: a file of requests cannot be read.
    """
    drawn = [[_drawn(run) for run in measurement.runs] for measurement in test.measurements]
    sides = list(zip(labels(test.measurements), drawn, strict=True))
    return {
        "distributions": {
            family: [_distribution(label, family, runs) for label, runs in sides] for family in DISTRIBUTIONS
        },
        "timelines": [{"side": label, "runs": [run.timeline for run in runs]} for label, runs in sides],
    }


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The numbers of a run that the charts show. The records of a run take ten times the memory of these numbers, so
    the records are read run by run."""

    samples: Mapping[str, npt.NDArray[np.float64]]
    timeline: Mapping[str, object]
    stored: int
    left_out: int


def _drawn(run: Run) -> _Drawn:
    requests = Requests() if run.requests is None else decode(run.requests)
    samples = {family: _samples_ms(family, requests.records) for family in DISTRIBUTIONS}
    return _Drawn(samples, _timeline(run, requests), len(requests.records), requests.left_out)


def labels(measurements: Sequence[Measurement]) -> list[str]:
    """Chart labels: "A" and "B" for the sides of a claim, numbers for several measurements. A repeated side also gets a
    number. The rates of a search are labelled with the rate."""
    if [measurement.side for measurement in measurements] == [""]:
        return ["measured"]
    return [_label(*pair) for pair in zip(measurements, names(measurements), strict=True)]


def _label(measurement: Measurement, name: str) -> str:
    if measurement.tried:
        return measurement.conditions["tried_rate"]
    return f"search {name.upper()}" if measurement.searched else name.upper()


def _distribution(label: str, family: str, runs: Sequence[_Drawn]) -> dict[str, object]:
    """Quantiles of each run, and of all runs together, in ms."""
    import numpy as np

    samples = [run.samples[family] for run in runs]
    pooled = np.concatenate(samples) if samples else np.empty(0)
    request_count, left_out = sum(run.stored for run in runs), sum(run.left_out for run in runs)
    return {
        "side": label,
        "n": len(pooled),
        "of": f"{request_count} of {request_count + left_out} requests" if left_out else "",
        "pooled": _quantiles(pooled),
        "runs": [_quantiles(sample) for sample in samples],
    }


def _samples_ms(family: str, records: Sequence[RequestRecord]) -> npt.NDArray[np.float64]:
    import numpy as np

    taken_ns = [FAMILIES[family].take(record) or () for record in records if record.ok]
    return np.fromiter(chain.from_iterable(taken_ns), dtype=float) / 1e6


def _quantiles(sample: npt.NDArray[np.float64]) -> list[float]:
    import numpy as np

    return rounded(np.quantile(sample, PROBABILITIES)) if len(sample) else []


def _timeline(run: Run, requests: Requests) -> dict[str, object]:
    return {
        "seed": run.seed,
        "start": run.start_id,
        "gaps": _gaps(requests.records),
        "in_flight": _in_flight(requests),
        "telemetry": series_of(run.telemetry),
    }


def _gaps(records: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """Per slice of the run, when it was (s) and the median and largest gap that ended in it (ms)."""
    import numpy as np

    origin_ns = start_ns(records)
    arrivals_ns = [np.array(record.arrivals_ns) - origin_ns for record in records if len(record.arrivals_ns) > 1]
    if not arrivals_ns:
        return {"time_s": [], "median": [], "largest": []}
    ends_ns = np.concatenate([stamps_ns[1:] for stamps_ns in arrivals_ns])
    gaps_ns = np.concatenate([np.diff(stamps_ns) for stamps_ns in arrivals_ns])
    order = np.argsort(ends_ns, kind="stable")
    at_ns, gap_ns = ends_ns[order].astype(float), gaps_ns[order].astype(float)
    width_ns = max(at_ns[-1] / BINS, 1.0)
    slices, first = np.unique(np.minimum(at_ns // width_ns, BINS - 1), return_index=True)
    groups = np.split(gap_ns / 1e6, first[1:])
    return {
        "time_s": rounded((slices + 0.5) * width_ns / 1e9),
        "median": rounded([float(np.median(group)) for group in groups]),
        "largest": rounded(np.maximum.reduceat(gap_ns / 1e6, first)),
    }


def _in_flight(requests: Requests) -> dict[str, list[float]]:
    """How many requests were sent and not yet ended; times count from the first intended send, as in the file."""
    import numpy as np

    if not requests.flights_ns:
        return {"time_s": [], "requests": []}
    begun, ends = np.sort(np.array(requests.flights_ns).T)
    at_ns = np.linspace(0, ends[-1], BINS)
    count = np.searchsorted(begun, at_ns, "right") - np.searchsorted(ends, at_ns, "right")
    return {"time_s": rounded(at_ns / 1e9), "requests": [int(value) for value in count]}


def rounded(values: Iterable[float]) -> list[float]:
    """Four significant digits: more is not seen in a chart."""
    return [float(f"{value:.{DIGITS}g}") for value in values]
