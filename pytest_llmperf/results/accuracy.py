"""Right and wrong answers of one server to the questions of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_llmperf.errors import UsageError


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What `perf.accuracy` returns.

    Args:
        task: name of the task.
        engine: the engine spec as text.
        metric: the task's metric that says which answers are right: "exact_match", "acc".
        right: question → whether its answer is right. A question is identified by its text.

    Raises:
        UsageError: there is no question.
    """

    task: str
    engine: str
    metric: str
    right: Mapping[str, bool]

    def __post_init__(self) -> None:
        if not self.right:
            raise UsageError(f"The task {self.task} has no question, so {self.engine} has no accuracy. Look at the "
                             "task's data files.")

    @property
    def correct(self) -> int:
        """Number of right answers."""
        return sum(self.right.values())

    @property
    def questions(self) -> int:
        """Number of questions."""
        return len(self.right)

    @property
    def share(self) -> float:
        """Share of right answers, 0…1."""
        return self.correct / self.questions

    def alone(self, other: Accuracy) -> int:
        """Number of questions that this server answers right and the other server answers wrong.

        Raises:
            UsageError: the two servers were asked different questions.
        """
        if self.right.keys() != other.right.keys():
            raise UsageError(f"The accuracies of {self.task} and {other.task} rest on different questions, so they "
                             "cannot be paired. Use one task file that does not change during the session.")
        return sum(right and not other.right[question] for question, right in self.right.items())
