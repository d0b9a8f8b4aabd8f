"""The journal row of one suite run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_llmperf.calibration.alternative_rules import RuleInputs, alarms, rule_inputs
from pytest_llmperf.calibration.suite_test import SuiteOutcome
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import StoredMeasurement
from pytest_llmperf.results.check import BASELINE_COMPARISON
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.sentences import estimate_text, reason_text
from pytest_llmperf.stats.decision import LOOKS

BAD = (Verdict.FAIL, Verdict.ERROR)
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """What a suite run came to.

    Args:
        experiment: its name.
        number: of the suite run; its noise follows from it.
        verdicts: verdict → number of checks.
        tpot: the same of comparisons of mean TPOT with a baseline.
        bad: of each FAIL or ERROR the test, the check, the verdict and its reason.
        open: of each INCONCLUSIVE the test and the check.
        runs: most runs that a compared measurement has; 0 where none was compared.
        rivals: rule → metrics that it alarms on, "test metric"; empty where nothing was compared.
        seen: comparisons that the rules judged.
    """

    experiment: str
    number: int
    verdicts: Mapping[str, int]
    tpot: Mapping[str, int]
    bad: Sequence[Sequence[str]]
    open: Sequence[Sequence[str]]
    runs: int
    rivals: Mapping[str, Sequence[str]]
    seen: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def alarmed(self) -> bool:
        return bool(self.bad)

    def alarmed_by(self, rule: str, metric: str) -> bool:
        """Whether a rival alarms on that metric of any test; "" is any metric."""
        return any(alarm.endswith(metric) for alarm in self.rivals.get(rule, ()))

    def says(self, cause: str) -> bool:
        """Whether a FAIL or ERROR names it."""
        return any(cause in part for failure in self.bad for part in failure[1:])


def row_of(
    experiment: str,
    number: int,
    outcomes: Sequence[SuiteOutcome],
    *,
    last: Mapping[str, Measurement],
    stored: Mapping[str, StoredMeasurement | None],
    suite_primaries: int,
) -> CalibrationRow:
    """The journal row of a suite run.

    Args:
        last: test → measurement in the session with which the alternative rules compare.
        stored: test → baseline of the measurement.
        suite_primaries: number of metrics that the whole suite compares with baselines.
    """
    results = [(outcome.test, result) for outcome in outcomes for result in outcome.results]
    measured = {o.test: m for o in outcomes for m in o.measurements if m.baseline is not None}
    rivals: dict[str, list[str]] = {}
    seen = 0
    for test, measurement in measured.items():
        for metric, inputs in _rule_inputs(measurement, last.get(test), stored.get(test)).items():
            seen += 1
            for rule, alarm in alarms(inputs, suite_primaries).items():
                rivals.setdefault(rule, []).extend([f"{test} {metric}"] * alarm)
    return CalibrationRow(
        experiment=experiment,
        number=number,
        verdicts=dict(Counter(result.verdict.value for _, result in results)),
        tpot=dict(Counter(r.verdict.value for _, r in results if r.subject == f"{BASELINE_COMPARISON} tpot_mean")),
        bad=[(test, r.subject, r.verdict.value, f"{r.metric} {estimate_text(r)}: {reason_text(r)}"[:LONGEST_REASON])
             for test, r in results if r.verdict in BAD],
        open=[(test, r.subject) for test, r in results if r.verdict is Verdict.INCONCLUSIVE],
        runs=max((len(measurement.runs) for measurement in measured.values()), default=0),
        rivals=rivals,
        seen=seen,
    )


def _rule_inputs(
    today: Measurement, last: Measurement | None, stored: StoredMeasurement | None
) -> Mapping[str, RuleInputs]:
    if last is None or stored is None or len(today.runs) < LOOKS[0]:
        return {}
    return rule_inputs(today, last, stored)
