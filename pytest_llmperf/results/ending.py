"""How one execution of a test ended: computed once where the test ran, and read by every report of the session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.model.verdict import Verdict

#: The end of a test that asks for what does not exist, beside the verdicts.
USAGE = "USAGE"


@dataclass(frozen=True, slots=True)
class ExecutionEnding:
    """How one execution of a test ended. It travels with pytest's reports, also from xdist's workers.

    Args:
        word: a verdict, `USAGE`, "failed" for an exception of the test's own, "skipped", "xfailed" or "pytest.exit";
            None before the end.
        error: why no check decided, with the evidence; None where checks decided.
        complete: whether the test reached its end.
        unchecked: how a test left that measured and checked nothing, "" where it returned, as long as a fixture may
            still check; None for any other test.
        checks: the results of the checks, as JSON.
        conditions: conditions of each measurement, as JSON.
        earlier: words of the earlier executions in this session.
        run_file: path of the run file; "" without a run file.
        test: the test's id; "" for a test without llmperf.
        owner: as in `results.ended_test.EndedTest`.
        excuse: as in `results.ended_test.EndedTest`.
        undecided: of a failed phase that no check decided: one of `results.ended_test.UNDECIDED` and the reason.
    """

    word: str | None = None
    error: str | None = None
    complete: bool = False
    unchecked: str | None = None
    checks: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    run_file: str = ""
    test: str = ""
    owner: str = ""
    excuse: str = ""
    undecided: tuple[str, str] | None = None

    @property
    def path(self) -> Path | None:
        """The run file; None without a run file."""
        return Path(self.run_file) if self.run_file else None

    @property
    def verdict(self) -> str | None:
        """The word if it is a verdict or `USAGE`; None for any other end."""
        return self.word if self.word == USAGE or self.word in Verdict.__members__ else None
