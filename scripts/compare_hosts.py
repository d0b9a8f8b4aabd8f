#!/usr/bin/env python3
"""Judge every stored session of real hardware against the other hosts' sessions of its baseline: A/A between hosts.

    python scripts/compare_hosts.py h200

Nothing was changed between the sessions, so each FAIL is a false alarm. The script writes the table between the two
comments of docs/measured/KIND_between_hosts.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from markdown_pages import table, with_part

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.judging.baseline_comparison import ComparisonTerms, comparison_of
from pytest_llmperf.metrics import RunMetrics, find
from pytest_llmperf.model.record import RunRecords
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.session_spread import suite_spread
from pytest_llmperf.stats.decision import PASS_CONFIDENCE, SUITE_ALPHA, decide
from pytest_llmperf.stats.priors import Scale, SuiteSpread, scale_of, worse_when_larger

ROOT = Path(__file__).resolve().parents[1]
HEAD = ("test", "host", "against", "metric", "runs", "difference", "90 % CI", "verdict")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("kind", choices=("l4", "a100", "h100", "h200"))
    kind = parser.parse_args(argv).kind
    measured = ROOT / "docs" / "measured" / kind
    page = measured.with_name(f"{kind}_between_hosts.md")
    hosts = table(HEAD, rows(Store(ROOT / "baselines"), kind, letters(measured)))
    page.write_text(with_part(page.read_text(encoding="utf-8"), "hosts", hosts), encoding="utf-8")
    print(hosts)
    return 0


def letters(measured: Path) -> dict[str, str]:
    """Session id → the letter of its host, as run folders are named."""
    return {folder.name.partition("-")[2]: folder.name.partition("-")[0] for folder in measured.glob("?-*")}


def rows(store: Store, kind: str, hosts: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """One per session and primary metric, of tests with several sessions."""
    baselines = store.read_all(kind)
    suite_primaries = sum(len(m.primaries) for baseline in baselines.values() for m in baseline.measurements.values())
    for baseline in sorted(baselines.values(), key=lambda baseline: baseline.test):
        name = baseline.test.rpartition("::")[2]
        for stored in baseline.measurements.values():
            for session in stored.sessions if len(stored.sessions) > 1 else ():
                names = {session.id: hosts.get(session.id, session.host) for session in stored.sessions}
                others = tuple(other for other in stored.sessions if names[other.id] != names[session.id])
                if not others:
                    continue
                other_hosts = ", ".join(names[other.id] for other in others)
                terms = ComparisonTerms(stored.primaries, {}, suite_primaries, kind, session.host,
                                        suite=other_hosts_spread(baselines.values(), kind, session))
                for cells in judged(session, replace(stored, sessions=others), terms):
                    yield f"`{name}`", names[session.id], other_hosts, *cells


def other_hosts_spread(baselines: Iterable[Baseline], kind: str, session: StoredSession) -> SuiteSpread:
    """How much the sessions of the suite differ without those of this session's host."""
    others = [
        replace(stored, sessions=tuple(each for each in stored.sessions if each.host != session.host))
        for baseline in baselines for stored in baseline.measurements.values()
    ]
    return suite_spread(others, kind, session.host)


def judged(
    session: StoredSession, stored: StoredMeasurement, terms: ComparisonTerms
) -> Iterator[tuple[str, ...]]:
    """Judges a stored session like a new session. The session cannot measure further runs, so its whole error
    probability is spent at this look."""
    runs = tuple(Run(seed, start, RunRecords()) for seed, start in session.runs)
    metrics = [
        RunMetrics(RunRecords(), {name: values[run] for name, values in session.metrics.items()})
        for run in range(len(runs))
    ]
    today = Measurement("", "", {}, runs, tuple(metrics))
    compared = [comparison_of(today, stored, find(name), terms)[0] for name in stored.primaries]
    verdicts = decide(compared, SUITE_ALPHA * len(compared) / terms.suite_primaries)
    for name, tested, verdict in zip(stored.primaries, compared, verdicts, strict=True):
        metric = find(name)
        low, middle, high = sorted(
            100 * scale_of(metric).change(distance, worse_when_larger=worse_when_larger(metric))
            for distance in (
                tested.shift.lower(PASS_CONFIDENCE),
                tested.shift.effect,
                tested.shift.upper(PASS_CONFIDENCE),
            )
        )
        unit = "%" if scale_of(metric) is Scale.LOG else "pp"
        yield (name, f"{len(runs)}", f"{middle:+.1f} {unit}", f"{low:+.1f} … {high:+.1f} {unit}", verdict.value)


if __name__ == "__main__":
    sys.exit(main())
