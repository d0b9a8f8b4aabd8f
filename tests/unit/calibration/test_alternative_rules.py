"""Each alternative rule alarms on the same data as the tool that uses this rule."""

import random
from dataclasses import replace

import pytest
from pytest_benchmark.utils import parse_compare_fail

from pytest_llmperf.calibration.alternative_rules import (
    FIXED,
    MANN_WHITNEY,
    MANN_WHITNEY_SHARED,
    PYTEST_BENCHMARK,
    RuleInputs,
    alarms,
    percent_over,
)

QUIET = RuleInputs([10.0, 10.1, 9.9], [10.0, 10.1, 9.9] * 3, [10.0, 10.1, 9.9], list(range(100)), list(range(100)))


def test_benchmark_rule_equals_pytest_benchmark_compare_fail():
    check, rng = parse_compare_fail("mean:5%"), random.Random(1)
    pairs = [(rng.uniform(0.9, 1.2), rng.uniform(0.9, 1.1)) for _ in range(2000)] + [(1.05, 1.0), (1.0, 0.0)]
    for current, stored in pairs:
        fails = check.fails({"mean": current}, {"mean": stored}) is not None
        assert (percent_over(current, stored) > 5) == fails
    assert 100 < sum(percent_over(*pair) > 5 for pair in pairs) < 1900


def test_alternative_rules_raise_no_alarm_without_change():
    assert not any(alarms(QUIET, 10).values())


@pytest.mark.parametrize(("changed", "rule"), [
    (replace(QUIET, stored=[9.4] * 9), FIXED),
    (replace(QUIET, last=[9.4] * 3), PYTEST_BENCHMARK),
    (replace(QUIET, last_requests=[value - 8 for value in range(100)]), MANN_WHITNEY),
])
def test_each_alternative_rule_detects_expected_change(changed, rule):
    assert [name for name, alarm in alarms(changed, 10).items() if alarm] == [rule]


def test_shared_error_level_needs_larger_difference():
    clear = replace(QUIET, last_requests=[value - 30 for value in range(100)])
    assert alarms(clear, 10)[MANN_WHITNEY_SHARED]
    assert not alarms(clear, 10**12)[MANN_WHITNEY_SHARED]
