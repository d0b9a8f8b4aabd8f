"""Plants faults into the servers of a suite, one session each, and counts which tests notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from pytest_llmperf.calibration.aa_sessions import run_session
from pytest_llmperf.engines.process.planted_flags import planted_flag
from pytest_llmperf.errors import UsageError
from pytest_llmperf.report.table import aligned
from pytest_llmperf.results.ended_test import NOT_COMPARED
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import read_run

#: Each fault of the emulator with a value that a suite should notice, and the step time by small amounts.
FAULTS = (
    "step_time=+1%", "step_time=+2%", "step_time=+5%", "step_time=+10%", "prefix_cache=off", "answer_cache=off",
    "chunk_budget=/4", "kv=-50%", "acceptance=-0.5", "tp_link=/2", "offload_bandwidth=/4", "stalls=1%", "leak",
    "router=round_robin", "starved_replica=2", "slow_replica=+20%:2", "throttle", "errors=2%", "hangs=2%",
    "truncated=2%", "limited=2%", "disconnects=ignored",
    "swapped=10%", "stale_blocks=10%", "truncated_transfers=10%", "wrong_weights=2",
)  # fmt: skip
NOTICED = ("FAIL", "ERROR", "FAILED")
SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Session:
    """One session with a planted fault.

    Args:
        planted: the fault or the flag; "" for the session without a fault.
        tests: test → result.
        seconds: duration.
        problem: why no test was measured; "" otherwise.
    """

    planted: str
    tests: Mapping[str, TestResult]
    seconds: float
    problem: str = ""

    @property
    def red(self) -> list[str]:
        """Tests that failed."""
        return [name for name, test in self.tests.items() if test.outcome in NOTICED]


def run_mutants(
    arguments: Sequence[str], flags: Sequence[str], folder: Path, notify: Callable[[str], None],
    faults: Sequence[str] = FAULTS,
) -> list[Session]:
    """The session without a fault, then one session for each fault of the emulator and for each flag.

    Args:
        arguments: tests and options of pytest.
        flags: values of --plant-flag.
        faults: values of --emulate-fault.
        folder: for the run folders.

    Raises:
        UsageError: the session without a fault measured nothing, or all of its tests are red.
        ConfigError: a flag has another form.
        SpecError: a flag names no engine.
    """
    for flag in flags:
        planted_flag(flag)
    planted = [("", []), *((fault, [f"--emulate-fault={fault}"]) for fault in faults),
               *((flag, [f"--plant-flag={flag}"]) for flag in flags)]
    sessions: list[Session] = []
    for number, (name, options) in enumerate(planted):
        began_s, place = perf_counter(), folder / f"{number:02d}"
        try:
            run_session([*arguments, *options], place, Path.cwd())
            tests = {test.test: test for run in place.glob("*/") if (run / "tests").is_dir() for test in read_run(run)}
            problem = ""
        except UsageError as error:
            if not name:
                raise
            tests, problem = {}, str(error).strip().splitlines()[-1]
        sessions.append(Session(name, tests, perf_counter() - began_s, problem))
        if not name and len(sessions[0].red) == len(tests):
            raise UsageError(f"every test is red without a fault, so none can notice one. Correct what pytest reports: "
                             f"llmperf show {next(place.iterdir())}")
        notify(f"{number + 1} of {len(planted)}: {name or 'no fault'}: {len(sessions[-1].red)} of {len(tests)} tests "
               f"are red, {sessions[-1].seconds:.0f} s")
    return sessions


def report(sessions: Sequence[Session]) -> Iterator[str]:
    """The table of faults, what nothing notices, which tests notice nothing, and the false alarms."""
    unplanted, *mutants = sessions
    alarms = unplanted.red
    rows = [("planted", "noticed by", "first", "min")]
    noticing = {mutant.planted: [name for name in mutant.red if name not in alarms] for mutant in mutants}
    for mutant in mutants:
        names = noticing[mutant.planted]
        first = f"{names[0]}: {mutant.tests[names[0]].ending.decided_by}" if names else mutant.problem
        shown = first if len(first) <= SHOWN_CHARACTERS else f"{first[:SHOWN_CHARACTERS - 1]}…"
        rows.append((mutant.planted, f"{len(names)} of {len(mutant.tests)}", shown, f"{mutant.seconds / 60:.1f}"))
    yield from aligned(rows)
    measured = [mutant for mutant in mutants if not mutant.problem]
    unnoticed = [mutant.planted for mutant in measured if not noticing[mutant.planted]]
    yield f"noticed by no test: {', '.join(unnoticed) or 'none'} ({len(unnoticed)} of {len(measured)} faults)"
    blind = [name for name in unplanted.tests if not any(name in names for names in noticing.values())]
    if blind:
        yield f"tests that notice no fault: {', '.join(blind)}"
    yield (f"false alarms without a fault: {', '.join(alarms) or 'none'} ({len(alarms)} of {len(unplanted.tests)} "
           "tests)")
    if lacking := [name for name, test in unplanted.tests.items() if test.outcome in NOT_COMPARED]:
        yield (f"without a comparable baseline: {', '.join(lacking)}. Such a test notices no slower step: store one "
               "with pytest --update-baselines-new.")
    yield f"{sum(session.seconds for session in sessions) / 60:.1f} min in {len(sessions)} sessions"
