"""Accuracy guards of a claim, and the accuracy of one server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_llmperf.engines.accuracy.lm_eval import Task, ask, check_fits, read_task
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import SloError
from pytest_llmperf.judging.accuracy import judge_loss, not_emulated
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.results.accuracy import Accuracy
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.series import Series

_PREFIX, _SUFFIX = "accuracy(", ")"


def split_guards(guards: Mapping[str, float] | None) -> tuple[Mapping[str, float] | None, dict[str, float]]:
    """Guards of metrics, and accuracy guards as task → tolerated loss: {"accuracy(sums.yaml)": 0.01} is one point.

    Raises:
        SloError: a tolerated loss is no share between 0 and 1.
    """
    metrics, tasks = dict[str, float](), dict[str, float]()
    if not isinstance(guards, Mapping):
        return guards, tasks
    for name, margin in guards.items():
        if not (isinstance(name, str) and name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
            metrics[name] = margin
            continue
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 < margin < 1:
            raise SloError(f"guards={{{name!r}: {margin!r}}}: a tolerated loss must be a share of all questions "
                           "between 0 and 1. Write 0.01 for one point.")
        tasks[name[len(_PREFIX):-len(_SUFFIX)]] = float(margin)
    return metrics, tasks


@dataclass(slots=True)
class AccuracyGuards:
    """The accuracy guards of a claim. Each side is asked once, on its first server start.

    Args:
        execution: of the test.
        margins: task → tolerated loss, as a share of all questions.
    """

    execution: Execution
    margins: Mapping[str, float]
    tasks: list[tuple[Task, float]] = field(default_factory=list)
    answers: dict[tuple[str, str], Accuracy] = field(default_factory=dict)

    def check(self, specs: Sequence[EngineSpec]) -> None:
        """Read the tasks before a server starts. On an emulator no task is read.

        Raises:
            SpecError: a task is missing, or one of the engines cannot answer it.
            EnvironmentMissing: lm-evaluation-harness is not installed.
        """
        session = self.execution.session
        if session.hardware.emulated:
            return
        self.tasks = [(read_task(task, session.settings, session.root), margin)
                      for task, margin in self.margins.items()]
        for task, _ in self.tasks:
            for spec in specs:
                check_fits(task, spec)

    def ask(self, series: Series) -> None:
        """Ask the running server of a side, after its first runs.

        Raises:
            EngineError, ServerDied: as in `engines.lm_eval.ask`.
        """
        for task, _ in self.tasks:
            if (series.side, task.name) not in self.answers:
                self.answers[series.side, task.name] = answers_of(self.execution, series.server(), task)

    def results(self, claimed: CheckResult | None) -> list[CheckResult]:
        """One result per task; none if a side was not asked because the other side alone decided the claim.

        Args:
            claimed: result of the claim itself.
        """
        if self.execution.session.hardware.emulated:
            return [not_emulated(task) for task in self.margins]
        return [
            judge_loss(self.answers["a", task.name], self.answers["b", task.name], margin, claimed)
            for task, margin in self.tasks if {("a", task.name), ("b", task.name)} <= self.answers.keys()
        ]


def answers_of(execution: Execution, server: Server, task: Task) -> Accuracy:
    """Ask a server; the harness's log and the answers are kept in the run folder."""
    session = execution.session
    session.folder.begin()
    name = re.sub(r"[^\w.-]+", "-", f"{execution.test}-{task.name}")[-80:]
    place = session.run_dir / "accuracy"
    number = sum(1 for _ in place.glob(f"{name}-*")) + 1
    return ask(task, server, place / f"{name}-{number}", session.settings)
