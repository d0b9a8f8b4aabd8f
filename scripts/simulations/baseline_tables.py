"""Tables of comparisons with stored baselines: which suites, and which columns of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pytest_llmperf.model.engine import UNKNOWN_HARDWARE
from pytest_llmperf.stats.decision import LOOKS
from pytest_llmperf.stats.interval import share_interval
from pytest_llmperf.stats.priors import Margins
from simulations.baselines import (
    FAIL,
    INCONCLUSIVE,
    RERUNS,
    STEP,
    TPOT,
    TTFT,
    Array,
    Judged,
    Noise,
    Suite,
    SuiteRuns,
    draw,
    execute_again,
    judged,
    of_tests,
    simulate,
)
from simulations.tables import Table, heading, percent, row, share, share_of

SESSIONS = (1, 2, 3, 5, 10)
#: Run and session sd of TPOT, then those of median TTFT.
NOISES = (("TPOT", TPOT, 0.005, 0.003), ("TPOT", TPOT, 0.01, 0.005), ("TPOT", TPOT, 0.02, 0.01),
          ("TPOT", TPOT, 0.035, 0.02), ("TTFT", TTFT, 0.02, 0.027))
#: (label of each leading column, suite)
Cells = Iterable[tuple[tuple[object, ...], Suite]]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        head: its heading.
        shown: its text.
        slower: by what factor every metric is slower in the suite runs that the column shows.
    """

    head: str
    shown: Callable[[SuiteRuns], str]
    slower: float = 1.0


RED = Column("red suites, nothing changed", lambda runs: share_of(runs.red()))
RED_LIMIT = Column("at most (95 %)",
                   lambda runs: percent(share_interval(sum(runs.red()), len(runs.verdicts), 0.95).high))
OPEN = Column("tests INCONCLUSIVE", lambda runs: percent(runs.tests_with(INCONCLUSIVE)))
RUNS = Column("runs per test", lambda runs: f"{np.mean(runs.runs):.2f}")


def fails(slower: float) -> Column:
    return Column(f"tests that FAIL at {slower:g} ×", lambda runs: percent(runs.tests_with(FAIL)), slower)


def opens(slower: float) -> Column:
    return Column(f"INCONCLUSIVE at {slower:g} ×", lambda runs: percent(runs.tests_with(INCONCLUSIVE)), slower)


def table(title: str, labels: tuple[str, ...], cells: Cells, *columns: Column) -> Table:
    """A row for each suite. Power takes a fifth of the suite runs."""
    def lines(suites: int, rng: np.random.Generator) -> Iterator[str]:
        yield from heading(title, *labels, *(column.head for column in columns))
        for label, suite in cells:
            runs = {slower: simulate(replace(suite, effect=float(np.log(slower))),
                                     suites if slower == 1 else -(-suites // 5), rng)
                    for slower in dict.fromkeys(column.slower for column in columns)}
            yield row(*label, *(column.shown(runs[column.slower]) for column in columns))

    return lines


def each_noise(suite: Suite, metrics: int = 30, per_test: int = 3) -> Iterator[tuple[str, Suite]]:
    """The same noise shape with each of the run and session sds."""
    for name, metric, run, session in NOISES:
        noise = replace(suite.noise, run=run, session=session)
        yield f"{name} {percent(run)} / {percent(session)}", replace(
            suite, noise=noise, tests=of_tests(metric, metrics, per_test))


#: Default metrics of five tests, as a new user's suite has them.
DEFAULT_SUITE = Suite(Noise(0.003, 0.0), tests=((STEP, TPOT),) * 5)
#: Noise between sessions of that suite.
YOUNG_NOISE = {
    "0.6 %": Noise(0.003, 0.006), "2 %": Noise(0.003, 0.02), "5 %": Noise(0.003, 0.05),
    "2 %, t(3)": Noise(0.003, 0.02, session_df=3),
    "2 %, common": Noise(0.003, 0.02, common=1.0), "5 %, common": Noise(0.003, 0.05, common=1.0),
}  # fmt: skip
#: Named by tests of the time to the first token, which depends on the host.
WIDE = Margins(0.12, 0.5)
#: Eight tests on H200s: the sds of runs and sessions of their stored sessions (docs/evidence/compared_metrics.md), and
#: the margins that the tests name.
H200_TESTS: Mapping[str, tuple[Judged, ...]] = {
    "serving": (Judged("itl_p50", sds=(0.0022, 0.0067)), Judged("tpot_mean", sds=(0.0078, 0.0112))),
    "chunked prefill": (Judged("itl_p99", sds=(0.0299, 0.0295)), Judged("itl_p50", sds=(0.0033, 0.0069))),
    "prefix cache": (Judged("ttft_mean", named=WIDE, sds=(0.0437, 0.0863)), Judged("itl_p50", sds=(0.0018, 0.0034))),
    "offload": (Judged("ttft_mean", named=WIDE, sds=(0.0317, 0.0817)),),
    "roofline": (Judged("itl_p50", sds=(0.0005, 0.0203)),),
    "speculation": (Judged("tpot_mean", named=Margins(0.1, 0.25), sds=(0.0262, 0.0622)),),
    "TP 2": (Judged("itl_p50", sds=(0.0025, 0.0050)),),
    "TP 4": (Judged("ttft_p50", sds=(0.0150, 0.0455)),),
}


def h200_suite(sessions: int, *, learns_margins: bool) -> Suite:
    return Suite(Noise(0, 0), sessions, tuple(H200_TESTS.values()), learns_margins=learns_margins)


def least_decided(runs: SuiteRuns) -> str:
    """The test that is INCONCLUSIVE most often."""
    decided = 1 - np.mean([[INCONCLUSIVE in test for test in suite] for suite in runs.verdicts], axis=0)
    return f"{list(H200_TESTS)[int(decided.argmin())]}: {percent(decided.min())}"


def failing_steps(slower: float) -> Column:
    def shown(runs: SuiteRuns) -> str:
        names = [metric.name for test in H200_TESTS.values() for metric in test]
        verdicts = np.array([[each for test in suite for each in test] for suite in runs.verdicts], dtype=object)
        return percent(float((verdicts[:, np.array(names) == STEP.name] == FAIL).mean()))

    return Column(f"decode steps that FAIL at {slower:g} ×", shown, slower)


def calm(metric: Judged, metrics: int, sessions: int) -> Suite:
    """A suite of one look whose noise is the prior's."""
    return Suite(Noise(metric.prior.run_sd, metric.prior.session_sd), sessions, of_tests(metric, metrics),
                 most_runs=LOOKS[0])


ENDPOINTS = (("ttft_p50", 0.005, 0.005), ("ttft_p50", 0.02, 0.027), ("ttft_p50", 0.1, 0.1),
             ("tpot_mean", 0.005, 0.005), ("tpot_mean", 0.02, 0.03), ("tpot_mean", 0.08, 0.16))


def reruns_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    """Every run of every execution is of one session; what is executed again is the test, not the suite."""
    yield from heading(f"A/A, M = 30, each test executed again up to {RERUNS} times while it is INCONCLUSIVE or FAIL",
                       "noise, run / session", "stored sessions", "red at first", "red in the end", "red at any time",
                       "tests INCONCLUSIVE at first", "in the end")
    for sessions in (1, 3, 10):
        for name, suite in each_noise(Suite(Noise(0, 0), sessions)):
            worst = np.array([execute_again(suite, rng) for _ in range(suites)], dtype=object)
            red, unsure = (worst == FAIL).any(1), (worst == INCONCLUSIVE).mean((0, 1))
            yield row(name, sessions, *(share_of(each) for each in (red[:, 0], red[:, -1], red.any(1))),
                      percent(unsure[0]), percent(unsure[-1]))


def trust_table(suites: int, rng: np.random.Generator) -> Iterator[str]:
    """False alarms beside INCONCLUSIVE, by the rules that a project would use otherwise."""
    yield from heading("Nothing changed: five tests of median ITL and mean TPOT, three runs first", "run / session sd",
                       "stored sessions", "red suites", "tests INCONCLUSIVE", "with learnt margins",
                       "red suites: mean of 3 runs over all stored +5 %", "pytest-benchmark mean:5%, last session")
    for (run, session), sessions in product(((0.01, 0.005), (0.035, 0.02)), (1, 3, 10)):
        suite = replace(DEFAULT_SUITE, noise=Noise(run, session), sessions=sessions)
        draws = [draw(suite, rng) for _ in range(suites)]
        plain, learnt = ([judged(replace(suite, learns_margins=learns), *each) for each in draws]
                         for learns in (False, True))
        tests = len(suite.tests) * suites
        counts = [sum(INCONCLUSIVE in verdicts for suite_run in runs for verdicts, _ in suite_run)
                  for runs in (plain, learnt)]
        yield row(f"{percent(run)} / {percent(session)}", sessions,
                  share_of(any(FAIL in verdicts for verdicts, _ in suite_run) for suite_run in learnt),
                  *(percent(count / tests) for count in counts),
                  *(share(count, suites) for count in np.sum([thresholds(*each) for each in draws], axis=0).tolist()))


def thresholds(today: Array, stored: Array) -> list[bool]:
    """Whether the first three runs exceed the mean of all stored runs by 5 %, and the mean of the last session."""
    mean = np.exp(today[:, :3]).mean(1)
    return [bool((mean > 1.05 * np.exp(runs).mean((1, 2))).any()) for runs in (stored, stored[:, -1:])]


TABLES: dict[str, Table] = {
    "young": table("Baselines with few sessions: five tests of median ITL and mean TPOT, run sd 0.3 %",
                   ("session sd", "stored sessions"),
                   [((name, sessions), replace(DEFAULT_SUITE, noise=noise, sessions=sessions))
                    for name, noise in YOUNG_NOISE.items() for sessions in SESSIONS],
                   RED, OPEN, *map(fails, (1.05, 1.1, 1.2, 5))),
    "h200": table("Noise of the stored H200 sessions: eleven metrics of eight tests", ("margins", "stored sessions"),
                  [(("learnt" if learns else "default", sessions), h200_suite(sessions, learns_margins=learns))
                   for learns in (False, True) for sessions in SESSIONS],
                  RED, OPEN, Column("least decided test", least_decided), RUNS, *map(failing_steps, (1.058, 1.2))),
    "reruns": reruns_table,
    "slower": table("Power of the first look against few sessions, tests of one metric, noise of the prior",
                    ("metric", "M", "stored sessions"),
                    [((metric.name, metrics, sessions), calm(metric, metrics, sessions))
                     for metric in (TPOT, TTFT) for metrics in (2, 30) for sessions in (1, 2)],
                    *map(fails, (1.2, 1.5, 2, 3, 5))),
    "endpoints": table("An endpoint, M = 2, three runs, by a CPU's rows and by those of unknown hardware",
                       ("metric", "sd of runs / sessions", "rows", "stored sessions"),
                       [((name, f"{percent(run)} / {percent(session)}", hardware, sessions),
                         Suite(Noise(run, session), sessions, ((Judged(name, hardware),) * 2,), most_runs=LOOKS[0]))
                        for name, run, session in ENDPOINTS for hardware in ("cpu", UNKNOWN_HARDWARE)
                        for sessions in (1, 3, 5, 10)],
                       RED, RED_LIMIT, fails(1.2), opens(1.2)),
    "trust": trust_table,
}  # fmt: skip
