"""A calibration on the emulator as a Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmperf.calibration.alternative_rules import RULES
from pytest_llmperf.calibration.experiments import A_A, Experiment
from pytest_llmperf.calibration.limits import SETTINGS, Setting
from pytest_llmperf.calibration.row import CalibrationRow
from pytest_llmperf.calibration.slow_servers import CASES, RUNS, TRUTH_REQUESTS, slow_names
from pytest_llmperf.calibration.traffic import QUEUES, REQUESTS_OF_QUEUE
from pytest_llmperf.judging.sample import PERIODS_PER_RUN
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.binomial import share_interval
from pytest_llmperf.stats.decision import LOOKS

#: Each of the two limits of an interval: together 95 %.
CONFIDENCE = 0.975
OURS = "pytest-llmperf"


@dataclass(frozen=True, slots=True)
class Origin:
    """The conditions of the figures, as text for readers.

    Args:
        kind: emulated hardware.
        command: command that produced the page and can reproduce it.
        commit, date, machine: of the run.
        suite_primaries: number of metrics that the whole suite compares with baselines.
        named: tests that the command names; empty if the command runs all tests of the suites.
        left_out: ids of tests of the suite that were not run, because they have fixtures of their own.
    """

    kind: str
    command: str
    commit: str
    date: str
    machine: str
    suite_primaries: int
    named: tuple[str, ...]
    left_out: tuple[str, ...]


def share(count: int, of: int) -> str:
    """ "3 of 200: 1.5 % (0.31–4.32 %)", with Clopper–Pearson limits."""
    if not of:
        return "–"
    limits = share_interval(count, of, CONFIDENCE)
    return f"{count} of {of}: {_percent(count / of)} ({_percent(limits.low)}–{_percent(limits.high)})"


def page(origin: Origin, experiments: Sequence[Experiment], rows: Iterable[CalibrationRow]) -> str:
    """The whole page."""
    by_name: dict[str, list[CalibrationRow]] = {}
    for row in rows:
        by_name.setdefault(row.experiment, []).append(row)
    parts = (
        (_unchanged_section, [experiment for experiment in experiments if experiment.name.startswith(A_A)]),
        (_slowdown_section, [experiment for experiment in experiments if experiment.slowdown is not None]),
        (_mechanism_section, [experiment for experiment in experiments if experiment.faults]),
    )
    made = list(_top(origin))
    for part, chosen in parts:
        made += part(chosen, by_name) if chosen else ()
    made += _limit_section(by_name)
    made += _slow_servers(by_name)
    made += _alternative_rules_section(experiments, by_name)
    return "\n".join(made) + "\n"


def limit_name(setting: Setting) -> str:
    """Key of the row that counts the verdicts of a setting."""
    return f"p{setting.percentile}, {setting.requests} requests a run, starts differ by {setting.shift:g} sd"


def _top(origin: Origin) -> Iterator[str]:
    subject = f"verdicts of {len(origin.named)} tests" if origin.named else "verdicts"
    yield f"""# How often {subject} are wrong

Written by `{origin.command}` on {origin.date}, commit {origin.commit}, {origin.machine}. Intervals are Clopper–Pearson,
95 %. The command generates the whole page.

A suite run is every check of {_scope_text(origin)}: SLOs, claims with their
mechanisms, and comparisons with the stored baselines, whose {origin.suite_primaries} metrics share an error
probability of 1 %. The tests' own functions run, and the code that judges is the product's. Only this differs from
`pytest suites --emulate {origin.kind}`: an engine restarts within its process and is sent each workload once,
servers are not warmed up (an emulator is warm), and nothing is written. Every suite run has a noise seed of its own: a
factor per server start (sd 0.3 %), one per run (0.5 %), and one per step (1 %, autocorrelation 0.6). Queues amplify
the noise: in an open loop a step that is 1 % longer makes mean TPOT about 1.4 % longer."""
    if origin.left_out:
        names = ", ".join(f"`{test}`" for test in origin.left_out)
        yield f"\nLeft out, because they have fixtures of their own: {names}."


def _scope_text(origin: Origin) -> str:
    if not origin.named:
        return f"every shipped suite that runs on an emulated {origin.kind}"
    return f"{len(origin.named)} tests on an emulated {origin.kind} ({', '.join(f'`{name}`' for name in origin.named)})"


def _unchanged_section(
    experiments: Sequence[Experiment], rows: Mapping[str, Sequence[CalibrationRow]]
) -> Iterator[str]:
    yield from _head("Nothing changed", "suite runs", "suite runs with a false alarm", "of these by an ERROR",
                     "suite runs with INCONCLUSIVE", "TPOT comparisons INCONCLUSIVE", "suite runs with IMPROVED")
    for experiment in experiments:
        experiment_rows = rows.get(experiment.name, ())
        tpot = sum((Counter(row.tpot) for row in experiment_rows), Counter())
        yield _line(
            experiment.name,
            _share_of(experiment_rows, _is_alarmed),
            sum(Verdict.ERROR.value in row.verdicts for row in experiment_rows),
            _share_of(experiment_rows, lambda row: bool(row.open)),
            share(tpot[Verdict.INCONCLUSIVE.value], sum(tpot.values())),
            sum(Verdict.IMPROVED.value in row.verdicts for row in experiment_rows),
        )
    yield ("\nA false alarm is a FAIL or an ERROR of any check. The stored baselines are one random draw of the "
           'noise. In the row "drawn baselines" each suite run is compared with newly simulated sessions, as many as '
           'are stored. In the row "run sd 3.5 %" the time of a step varies by 3.5 % (sd) between runs and by 2 % '
           "between sessions, in the suite runs and in the simulated baselines.")


def _slowdown_section(experiments: Sequence[Experiment], rows: Mapping[str, Sequence[CalibrationRow]]) -> Iterator[str]:
    yield from _head("Slowdowns", "planted in test_serving", "found with at most 5 runs", "found with at most 8",
                     "INCONCLUSIVE", "silently green")
    for experiment in experiments:
        experiment_rows = rows.get(experiment.name, ())
        yield _line(
            experiment.name,
            _share_of(experiment_rows, _names(experiment.cause, runs=5)),
            _share_of(experiment_rows, _names(experiment.cause)),
            _share_of(experiment_rows, _is_inconclusive),
            _share_of(experiment_rows, _is_green),
        )
    yield ("\nFound: mean TPOT itself fails against the stored baseline. The planted step time changes mean TPOT by "
           "the stated percentage, and the noise is scaled so that mean TPOT has the stated sd.")


def _mechanism_section(
    experiments: Sequence[Experiment], rows: Mapping[str, Sequence[CalibrationRow]]
) -> Iterator[str]:
    yield from _head("Faults of mechanisms", "planted", "watched by", "found", "named", "by the words", "INCONCLUSIVE",
                     "silently green")
    for experiment in experiments:
        experiment_rows = rows.get(experiment.name, ())
        yield _line(
            f"`{experiment.name}`",
            experiment.watched_by,
            _share_of(experiment_rows, _is_alarmed),
            _share_of(experiment_rows, _names(experiment.cause)),
            f"“{experiment.cause}”",
            _share_of(experiment_rows, _is_inconclusive),
            _share_of(experiment_rows, _is_green),
        )


def _limit_section(rows: Mapping[str, Sequence[CalibrationRow]]) -> Iterator[str]:
    if not any(limit_name(setting) in rows for setting in SETTINGS):
        return
    yield from _head("SLOs at their exact limit", "SLO, five runs on five server starts", "PASS (each is false)",
                     "FAIL (each is false)")
    for setting in SETTINGS:
        counts = sum((Counter(row.verdicts) for row in rows.get(limit_name(setting), ())), Counter())
        of = sum(counts.values())
        yield _line(limit_name(setting), share(counts["PASS"], of), share(counts["FAIL"], of))
    yield ("\nSimulated latencies of requests that resemble their neighbours (AR(1) of 0.6). The sd between starts is "
           "in units of the sd between requests. At the limit nothing but INCONCLUSIVE is right.")


def _slow_servers(rows: Mapping[str, Sequence[CalibrationRow]]) -> Iterator[str]:
    chosen = [(case, requests) for case in CASES for requests in case.requests if slow_names(case, requests)[0] in rows]
    if not chosen:
        return
    yield from _head("SLOs on servers that change slowly", "server", "SLO", f"{RUNS} runs of", "run ÷ period",
                     "PASS at the exact limit (false)", "PASS where the truth is 10 % beyond (false)",
                     "FAIL at the exact limit (false)", "PASS where the limit is twice the truth")
    for case, requests in chosen:
        exact, beyond, far = (Counter(rows[name][0].verdicts) for name in slow_names(case, requests))
        yield _line(case.server, case.metric, f"{requests} requests", f"{case.periods(requests):.3g}",
                    *(share(counts[verdict], sum(counts.values()))
                      for counts, verdict in ((exact, "PASS"), (beyond, "PASS"), (exact, "FAIL"), (far, "PASS"))))
    yield ("\nSimulated request records, ten requests per second, the exact limit from a simulation of "
           f"{TRUTH_REQUESTS:,} requests, behind a queue of {QUEUES * REQUESTS_OF_QUEUE:,}. A period is the "
           "correlation time of the server, or the mean time between its spells. Where a run is shorter than "
           f"{PERIODS_PER_RUN} periods, the verdict says that such changes are not excluded.")


def _alternative_rules_section(
    experiments: Sequence[Experiment], rows: Mapping[str, Sequence[CalibrationRow]]
) -> Iterator[str]:
    chosen = [
        experiment for experiment in experiments if experiment.slowdown is not None or experiment.name.startswith(A_A)
    ]
    yield from _head("The same data judged by other rules", "rule",
                     *(f"{each.name}: {'suite runs with an alarm' if each.slowdown is None else 'TPOT found'}"
                       for each in chosen))
    yield _line(OURS, *(
        _share_of(rows.get(each.name, ()), _names(each.cause) if each.cause else _is_alarmed) for each in chosen
    ))
    for rule in RULES:
        yield _line(rule, *(
            _share_of(rows.get(each.name, ()), _alarmed_by(rule, "tpot_mean" if each.slowdown else ""))
            for each in chosen
        ))
    seen = max((row.seen for experiment_rows in rows.values() for row in experiment_rows), default=0)
    yield (f"\nThe other rules see today's first three runs of up to {seen} latencies that the suites compare with "
           "baselines. “Last session” is another emulated session of three runs, as `--benchmark-autosave` would have "
           "kept it. M is the number of metrics that the suites compare. Alarms of the first line may come from any "
           "check, the others' from comparisons only.")


def _share_of(rows: Sequence[CalibrationRow], holds: Callable[[CalibrationRow], bool]) -> str:
    return share(sum(map(holds, rows)), len(rows))


def _is_alarmed(row: CalibrationRow) -> bool:
    return row.alarmed


def _is_inconclusive(row: CalibrationRow) -> bool:
    return not row.alarmed and bool(row.open)


def _is_green(row: CalibrationRow) -> bool:
    return not row.alarmed and not row.open


def _names(cause: str, runs: int = LOOKS[-1]) -> Callable[[CalibrationRow], bool]:
    """Whether a suite run names a cause once it has that many runs."""
    return lambda row: row.says(cause) and (row.runs <= runs or runs == LOOKS[-1])


def _alarmed_by(rule: str, metric: str) -> Callable[[CalibrationRow], bool]:
    return lambda row: row.alarmed_by(rule, metric)


def _head(title: str, *columns: str) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield _line(*columns)
    yield _line(*["---"] * len(columns))


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"
