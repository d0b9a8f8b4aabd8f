#!/usr/bin/env python3
"""How much each metric varies on H200s where nothing changed, and how far a slower decode step moves the metric.

    python scripts/measure_metric_spread.py

Reads the stored sessions (baselines/h200) and the runs of resident servers (docs/measured/h200/resident), and writes
the tables of docs/evidence/compared_metrics.md.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import log
from pathlib import Path

import compare_hosts
import numpy as np
import pandas as pd
from simulate_claims import heading, row

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.judging.baseline_comparison import ComparisonTerms
from pytest_llmperf.judging.reference_comparison import ReferenceTerms, judge_against_reference
from pytest_llmperf.metrics.run import CountedBy, RunMetrics
from pytest_llmperf.model.record import RunRecords
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession
from pytest_llmperf.results.measurement import Measurement, Run

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "evidence" / "compared_metrics.md"
KIND = "h200"
RESIDENT_RUNS = ROOT / "docs" / "measured" / KIND / "resident"
METRICS = ("itl_p50", "itl_per_token_p50", "itl_p99", "itl_mean", "tpot_p50", "tpot_mean", "ttft_p50", "ttft_mean",
           "ttft_p90", "e2el_p50", "output_throughput")
#: Metrics that are compared by default, before and now.
JUDGED = ("itl_p50", "tpot_mean", "ttft_p50", "ttft_mean")
SUITE_PRIMARIES = 13
STEP_US = 5270.0
KERNELS = {"8003": 53.5, "8004": 107.0}
PLAIN = ("8001", "8002")
RESIDENT = ("itl_p50", "tpot_mean", "ttft_p50")


def main() -> int:
    resident = resident_values(RESIDENT_RUNS)
    tables = {
        "spread": spread_table(stored_spread(ROOT / "baselines" / KIND)),
        "planted": planted_table(resident),
        "hosts": hosts_table(Store(ROOT / "baselines")),
        "resident": resident_table(RESIDENT_RUNS),
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name}: written by scripts/measure_metric_spread.py -->", f"<!-- end of {name} -->"
        head, begun, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (begun and ended):
            sys.exit(f"{PAGE} has no lines {begin} and {end}")
        text = "\n".join([f"{head}{begin}", "", *(line for line in lines if line.strip()), "", f"{end}{after}"])
    PAGE.write_text(text, encoding="utf-8")
    return 0


def stored_spread(folder: Path) -> pd.DataFrame:
    """One row per test and metric: sd between runs of one session and sd between sessions, of logarithms.

    The first run of each seed that all sessions have counts. Differences of seeds are removed (two-way analysis of
    variance).
    """
    rows = []
    for baseline in Store(folder.parent).read_all(KIND).values():
        for stored in baseline.measurements.values():
            hosts = len({session.host for session in stored.sessions})
            for metric in METRICS:
                values = seed_values(stored, metric)
                if values is not None:
                    rows.append((name_of(baseline), metric, *values.shape, hosts, *two_way_sds(values)))
    return pd.DataFrame(rows, columns=["test", "metric", "sessions", "seeds", "hosts", "run_sd", "session_sd"])


def name_of(baseline: Baseline) -> str:
    return baseline.test.rpartition("::")[2]


def seed_values(stored: StoredMeasurement, metric: str) -> np.ndarray | None:
    """Logarithms, one row per session and one column per seed; None where a value is missing."""
    sessions = [dict(reversed([(seed, value) for (seed, _), value in zip(each.runs, each.values(metric), strict=True)]))
                for each in stored.sessions]
    seeds = sorted(set.intersection(*(set(values_by_seed) for values_by_seed in sessions)))
    values = [[values_by_seed[seed] for seed in seeds] for values_by_seed in sessions]
    return None if any(not value for line in values for value in line) else np.log(np.array(values, dtype=float))


def two_way_sds(values: np.ndarray) -> tuple[float, float]:
    """The residual sd, and the sd of the rows' levels beyond what the residual explains."""
    sessions, seeds = values.shape
    residuals = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    run_variance = (residuals**2).sum() / (sessions - 1) / (seeds - 1)
    session_variance = values.mean(1).var(ddof=1) - run_variance / seeds
    return float(run_variance**0.5), float(max(0.0, session_variance) ** 0.5)


def spread_table(spread: pd.DataFrame) -> Iterator[str]:
    yield from heading("", "test", "sessions / hosts / seeds", *(f"`{metric}`" for metric in METRICS))
    for test, lines in spread.groupby("test"):
        cells = {line.metric: f"{100 * line.run_sd:.2f} / {100 * line.session_sd:.2f}" for line in lines.itertuples()}
        first = lines.iloc[0]
        yield row(f"`{test}`", f"{first.sessions} / {first.hosts} / {first.seeds}",
                  *(cells.get(metric, "–") for metric in METRICS))


def resident_values(folder: Path) -> dict[str, pd.DataFrame]:
    """Host → logarithms in per cent, one row per seed and one column per (metric, port)."""
    hosts = {}
    for path in sorted(folder.glob("*-four-servers.json")):
        values = {
            (run["seed"], metric, measurement["conditions"]["url"][-4:]): 100 * log(run["metrics"][metric])
            for measurement in json.loads(path.read_text(encoding="utf-8"))["measurements"]
            for run in measurement["runs"] for metric in METRICS
        }
        hosts[path.name[0]] = pd.Series(values).unstack([1, 2])
    return hosts


def planted_table(hosts: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Pairs of one seed: each planted server against the mean of both plain servers, and plain server 2 against 1."""
    yield from heading("", "metric", *(f"{host}: {what}" for host, values in hosts.items() for what in (
        f"plain pair (n {len(values)})", "+1.0 % planted", "+2.0 % planted", "change per planted %", "pair sd ÷ that")))
    for metric in METRICS:
        cells = []
        for values in hosts.values():
            logs = values[metric]
            plain = logs[PLAIN[1]] - logs[PLAIN[0]]
            planted = {us: logs[port] - logs[list(PLAIN)].mean(axis=1) for port, us in KERNELS.items()}
            gain = np.mean([pairs.mean() / (100 * us / STEP_US) for us, pairs in planted.items()])
            changes = [f"{pairs.mean():+.2f}, sd {pairs.std():.2f}" for pairs in (plain, *planted.values())]
            cells += [*changes, f"{gain:.2f}", f"{plain.std() / abs(gain):.2f}"]
        yield row(f"`{metric}`", *cells)


def hosts_table(store: Store) -> Iterator[str]:
    """Each session as if it were today's, made so many times slower, against the sessions of the other hosts."""
    names = compare_hosts.letters(ROOT / "docs" / "measured" / KIND)
    yield from heading("", "test", "metric", "sessions", "unchanged", "+2 %", "+5.8 %")
    for baseline in sorted(store.read_all(KIND).values(), key=lambda baseline: baseline.test):
        for stored in baseline.measurements.values():
            for metric in (metric for metric in JUDGED if seed_values(stored, metric) is not None):
                counts = [verdicts(store, stored, metric, slower, names) for slower in (1.0, 1.02, 1.058)]
                yield row(f"`{name_of(baseline)}`", f"`{metric}`", len(stored.sessions), *counts)


def verdicts(store: Store, stored: StoredMeasurement, metric: str, slower: float, names: Mapping[str, str]) -> str:
    """How many sessions have each verdict, by default margins."""
    counted: Counter[str] = Counter()
    for session in stored.sessions:
        others = tuple(other for other in stored.sessions if names[other.id] != names[session.id])
        spread = compare_hosts.other_hosts_spread(store.read_all(KIND).values(), KIND, session)
        terms = ComparisonTerms((metric,), {}, SUITE_PRIMARIES, KIND, session.host, suite=spread)
        others_of_host = replace(stored, sessions=others, primaries=(metric,))
        (line,) = compare_hosts.judged(made_slower(session, metric, slower), others_of_host, terms)
        counted[line.rpartition("| ")[2]] += 1
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counted.items()))


def made_slower(session: StoredSession, metric: str, times: float) -> StoredSession:
    values = tuple(None if value is None else times * value for value in session.values(metric))
    return replace(session, metrics={**session.metrics, metric: values})


def resident_table(folder: Path) -> Iterator[str]:
    """One start as candidate, a plain start as reference, by the rule of a reference build."""
    yield from heading("", "host", "candidate", "reference", "metric", "pairs", "difference", "93 % CI", "verdict",
                       "smallest detectable")
    terms = ReferenceTerms(RESIDENT, KIND, SUITE_PRIMARIES, {})
    for path in sorted(folder.glob("*-four-servers.json")):
        measured = resident_measurements(path)
        for candidate, reference in ((port, plain) for plain in PLAIN for port in measured if port != plain):
            for result in judge_against_reference(measured[candidate], measured[reference], terms):
                low, high = (100 * limit for limit in (result.interval.low, result.interval.high))
                yield row(path.name[0], server(candidate), server(reference), f"`{result.metric}`",
                          result.facts["pairs"], f"{100 * result.estimate:+.2f} %", f"{low:+.2f} … {high:+.2f} %",
                          result.verdict.value, f"+{100 * result.facts['smallest_detectable']:.1f} %")


def resident_measurements(path: Path) -> dict[str, Measurement]:
    """Port → the stored metrics of its runs; their requests are not stored, and the server counted the tokens."""
    measured = {}
    for measurement in json.loads(path.read_text(encoding="utf-8"))["measurements"]:
        runs = tuple(Run(run["seed"], run["start_id"], RunRecords()) for run in measurement["runs"])
        metrics = tuple(RunMetrics(RunRecords(), run["metrics"], counted_by=CountedBy.SERVER)
                        for run in measurement["runs"])
        measured[measurement["conditions"]["url"][-4:]] = Measurement("", "", measurement["conditions"], runs, metrics)
    return measured


def server(port: str) -> str:
    return f"{KERNELS[port]:g} µs planted" if port in KERNELS else f"plain {PLAIN.index(port) + 1}"


if __name__ == "__main__":
    sys.exit(main())
