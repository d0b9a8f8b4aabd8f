"""An acknowledged regression holds on the hardware kind of the entry alone."""

from datetime import date

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.baseline.acknowledged import Acknowledged, excuse_for
from pytest_llmperf.results.check import Stated

TODAY = date(2026, 1, 1)


@pytest.mark.parametrize(("kinds", "expected"), [
    ({"h200"}, "ACKNOWLEDGED until 2026-12-31: known"), ({"h200", "unknown"}, "ACKNOWLEDGED until 2026-12-31: known"),
    ({"l4"}, ""), (set(), ""),
])
def test_entry_excuses_test_that_measures_on_kind_of_entry_among_others(kinds, expected):
    entry = Acknowledged("t.py::test", "itl_p50", "h200", "2026-12-31", "known", "9 ms")
    check = CheckResult("itl_p50 <= 1ms", Verdict.FAIL, "itl_p50", cause=Stated("slow"))
    assert excuse_for([entry], "t.py::test", kinds, [check], TODAY) == expected
