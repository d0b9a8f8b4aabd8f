"""A session whose every performance test was skipped says that nothing was measured, and is not green in CI."""

import pytest

ELSEWHERE = """
import pytest

@pytest.mark.parametrize("n", range(3))
@pytest.mark.h200
def test_big(perf, n): give(perf, "PASS")

@pytest.mark.l4
def test_small(perf): give(perf, "PASS")
"""
LINE = "NOTHING MEASURED: all 4 performance tests need other hardware; this *--emulate h200"


@pytest.mark.parametrize(("ci", "code"), [("1", 4), ("", 0)])
@pytest.mark.parametrize("dist", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_session_with_only_skipped_tests_reports_that_no_test_measured(run, monkeypatch, ci, code, dist):
    monkeypatch.setenv("CI", ci)
    result, _ = run(ELSEWHERE, *dist)
    result.assert_outcomes(skipped=4)
    assert result.ret == code
    result.stdout.fnmatch_lines(["*4 skipped in *", LINE])
    assert result.outlines[-1].startswith("NOTHING MEASURED")


def test_session_without_measurements_keeps_exit_code_of_other_tests(run, monkeypatch):
    monkeypatch.setenv("CI", "1")
    result, _ = run(f"{ELSEWHERE}\ndef test_plain(): pass\n")
    assert result.ret == 0
    result.stdout.fnmatch_lines([LINE])


@pytest.mark.parametrize("text", ["def test_it(perf): give(perf, 'PASS')\n" + ELSEWHERE, "def test_plain(): pass\n"],
                         ids=["one measured", "none there"])
def test_line_is_absent_if_session_measured_or_has_no_performance_tests(run, monkeypatch, text):
    monkeypatch.setenv("CI", "1")
    result, _ = run(text)
    assert result.ret == 0
    assert "NOTHING MEASURED" not in result.stdout.str()
