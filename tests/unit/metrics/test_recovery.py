"""How long a run needs until it serves requests as before an event."""

import pytest

from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.failed_as_infinite import value_with_failures
from pytest_llmperf.metrics.recovery import WINDOW, recovery_time_s
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.testing.records import make_record

EVENT_S = 10.05  # after 100 of 400 requests, ten a second


def records(ttft_ms=lambda at_s: 50.0, fails=lambda at_s: False):
    return [make_record(number, intended_ms=100 * number, ttft_ms=ttft_ms(number / 10),
                        outcome=Outcome.RESET if fails(number / 10) else Outcome.OK) for number in range(400)]


def recovery(**changes):
    return recovery_time_s(records(**changes), {"disturbed_from_s": EVENT_S, "disturbed_until_s": 20.0})


def test_undisturbed_run_recovers_at_once():
    assert recovery() == pytest.approx(0.05)


def test_single_failure_right_after_the_event_takes_one_window():
    assert recovery(fails=lambda at_s: at_s == 10.1) == pytest.approx(0.05 + WINDOW / 10)


def test_recovery_ends_with_the_last_window_of_failures():
    assert recovery(fails=lambda at_s: 12 < at_s < 17 and at_s % 0.5 == 0) == pytest.approx(7.05)


def test_slow_window_counts_from_15_percent_above_the_largest_window_before():
    slow = [recovery(ttft_ms=lambda at_s, ttft=ttft: ttft if 10 < at_s < 15 else 60.0 if 3 < at_s < 5 else 50.0)
            for ttft in (68.0, 70.0)]
    assert slow == pytest.approx([0.05, 5.05])


def test_slow_window_alone_is_noise():
    assert recovery(ttft_ms=lambda at_s: 500.0 if 30.1 <= at_s <= 31 else 50.0) == pytest.approx(0.05)


def test_run_that_ends_disturbed_has_infinite_recovery_time():
    run = measure(records(fails=lambda at_s: at_s > 30), {"disturbed_from_s": EVENT_S, "disturbed_until_s": 20.0})
    assert run.value("recovery_time") is None
    assert value_with_failures(run, "recovery_time") == float("inf")


def test_run_without_events_has_no_recovery_time():
    run = measure(records(), {})
    assert "recovery_time" not in run.all()
    assert value_with_failures(run, "recovery_time") is None
