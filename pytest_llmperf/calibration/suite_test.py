"""A test of a suite as calibration sees it: something that measures and checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.perf_session import PerfSession


@dataclass(frozen=True, slots=True)
class SuiteTest:
    """One item of a suite.

    Args:
        name: its id.
        run: the test's own function.
        compares: as in `Execution`.
    """

    name: str
    run: Callable[[Execution], None]
    compares: bool = False


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """The results of one test.

    Args:
        test: test id.
        results: results of all checks, with an additional ERROR if the test was aborted.
        measurements: all measurements, in the order of their starts.
    """

    test: str
    results: tuple[CheckResult, ...]
    measurements: tuple[Measurement, ...]

    def only_compared(self) -> SuiteOutcome:
        """Without the measurements that no baseline is compared with. The request records of a whole suite run take
        gigabytes."""
        return replace(self, measurements=tuple(each for each in self.measurements if each.baseline is not None))


class UnwrittenExecution(Execution):
    """An execution that writes no run file."""

    def write(self) -> None:
        return


def outcome_of(test: SuiteTest, session: PerfSession, kind: str) -> SuiteOutcome:
    """Run a test once, as pytest would, except that the test has no earlier executions and no run file."""
    execution = UnwrittenExecution(session, test.name, kind, compares=test.compares)
    try:
        test.run(execution)
    except InfrastructureError as error:
        execution.add_results([CheckResult.stated("infrastructure", Verdict.ERROR, str(error))])
    return SuiteOutcome(test.name, execution.results, tuple(execution.measurements))
