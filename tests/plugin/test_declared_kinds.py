"""An endpoint with a declared hardware kind: its test runs as that kind on any machine, and `-m` selects the test."""

import pytest

SERVICE = """
import pytest
from pytest_llmperf import by_kind, endpoint

def service(kind):
    return endpoint("http://127.0.0.1:9", model="m", kind=kind)

@pytest.mark.engine(service("h200"))
def test_service(perf):
    assert perf.kind == "h200"
    give(perf, "PASS")

@pytest.mark.gpus(8)
@pytest.mark.engine(service("h100"))
def test_other_service(perf):
    assert perf.kind == "h100"
    give(perf, "PASS")
"""
LOCAL = """
@pytest.mark.h200
def test_local(perf): give(perf, "PASS")
"""
BY_KIND = """
@by_kind(h200={}, h100={})
@pytest.mark.engine(lambda case: service("h200"))
def test_rows(perf, case): give(perf, "PASS")
"""


@pytest.mark.parametrize("dist", [(), ("-n", "1")], ids=["plain", "xdist"])
@pytest.mark.parametrize("kind", ["h200", "h100"])
def test_marker_expression_selects_endpoint_of_the_declared_kind(run, monkeypatch, kind, dist):
    monkeypatch.setenv("CI", "1")
    result, _ = run(SERVICE, "-m", kind, *dist)
    assert result.ret == 0
    result.assert_outcomes(passed=1, deselected=0 if dist else 1)
    assert "NOTHING MEASURED" not in result.stdout.str()


def test_local_test_beside_a_declared_endpoint_is_skipped_with_reason(run):
    result, _ = run(SERVICE + LOCAL, "-m", "h200", "-rs")
    assert result.ret == 0
    result.assert_outcomes(passed=1, skipped=1, deselected=1)
    result.stdout.fnmatch_lines(["*needs h200; this machine has *"])


def test_endpoint_of_another_kind_leaves_missing_hardware_a_usage_error(run):
    result, _ = run(SERVICE + LOCAL, "-m", "a100")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*-m asks for a100, and this machine has *name an endpoint of this kind*kind='a100'*"])


def test_declared_endpoint_runs_on_any_machine(run):
    result, _ = run(SERVICE)
    result.assert_outcomes(passed=2)


def test_row_of_a_kind_that_the_endpoint_lacks_is_skipped(run):
    result, _ = run(SERVICE + BY_KIND, "-k", "rows", "-rs")
    result.assert_outcomes(passed=1, skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["*needs h100; this machine has *"])


def test_kind_that_does_not_exist_is_refused_with_a_near_kind(run):
    result, _ = run(SERVICE.replace('service("h200")', 'service("h20")'))
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*kind='h20'): there is no such hardware kind. Did you mean 'h200'? Known: l4, *"])
