"""Faults of a server (24, 25, 33, 42-46) as a user's pytest run shows them: outcome, exit code, JUnit, evidence."""


import pytest

from tests.faults.test_clock_faults import LOAD_PROCESSES

ONE = """
@pytest.mark.engine(stub({mode!r}))
def test_x(engine, perf):
    perf.check(perf.measure(engine, FEW, runs={runs}), {slos})
"""


def faulty_test(mode, *slos, runs=1):
    return ONE.format(mode=mode, runs=runs, slos=", ".join(map(repr, slos)))


def only(junit, tag):
    """The one element of that tag; JUnit counts agree with it."""
    (node,) = junit.iter(tag)
    counted = next(junit.iter("testsuite"))
    counts = {name: int(counted.get(name)) for name in ("errors", "failures", "skipped")}
    assert sum(counts.values()) == 1
    assert counts[{"error": "errors", "failure": "failures", "skipped": "skipped"}[tag]] == 1
    return node


DEATH = """
from pytest_llmperf import constant

@pytest.mark.engine(stub("dies", STUB_ITL_S="0.02"))
def test_x(engine, perf):
    perf.measure(engine, random_tokens(input=8, output=20, arrivals=constant(4), requests=2000))
"""


def test_server_killed_during_run_makes_test_an_error(suite):
    """Fault 24: its requests are given up, of which the last would be sent after 500 s."""
    result, junit = suite.run(DEATH)
    assert result.ret == 10
    error = only(junit, "error")
    for words in ("died: signal 9 (SIGKILL)", "command: ", "engine.py serve", "last words before it dies", "log: "):
        assert words in error.text
    assert not any(entry["complete"] for entry in suite.run_files().values())
    suite.nothing_left()


@pytest.mark.parametrize("slo", [
    "ttft_p50 <= 10s", pytest.param("error_rate == 0", marks=pytest.mark.thorough),
])
def test_hanging_server_makes_test_an_error(suite, slo):
    """Fault 25: an ERROR even where the test names the error rate."""
    suite.settings(idle_timeout_s=4, first_byte_timeout_s=4)
    result, junit = suite.run(faulty_test("hangs", slo, runs=2))
    assert result.ret == 10
    text = only(junit, "error").text
    assert "server hangs" in text
    assert "last words before it hangs" in text
    suite.nothing_left()


def test_run_beyond_measure_timeout_makes_test_an_error(suite):
    suite.settings(measure_timeout_s=3)
    result, junit = suite.run(
        "@pytest.mark.engine(stub('', STUB_ITL_S='0.1'))\n"
        "def test_x(engine, perf): perf.measure(engine, FEW)\n"
    )
    assert result.ret == 10
    assert "did not end within 3 s" in only(junit, "error").text


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("lies", "the server counted 480"),  # fault 33
        ("short", "wrong length"),  # fault 43
        ("long", "wrong length"),
        ("foreign", "serves somebody-else, not 'tiny-"),  # fault 44
        ("wrong-model", "loaded another-model, not "),
        ("resets", "restarted itself: its counter "),  # fault 46
        ("restarts", "restarted itself: its start time changed from 1000000000 to 2000000000"),
        ("errors", "requests failed (7 × HTTP 500"),  # fault 35
        ("cached", "prompts of an earlier run were still cached"),
        ("preempts", "12 preemptions: the KV cache was too small"),
    ],
)
def test_invalid_run_makes_test_an_error(suite, mode, words):
    result, junit = suite.run(faulty_test(mode, "ttft_p50 <= 10s"))
    assert result.ret == 10
    assert words in only(junit, "error").text


@pytest.mark.parametrize(
    ("mode", "slo"),
    [("errors", "error_rate == 0"), ("cached", "prefix_cache_hit_rate == 0"), ("preempts", "preemptions == 0")],
)
def test_deviation_of_judged_metric_is_a_fail_instead_of_error(suite, mode, slo):
    """A deviation of a metric that the test names is a FAIL, not an ERROR."""
    result, junit = suite.run(faulty_test(mode, slo))
    assert result.ret == 1
    assert slo.split()[0] in only(junit, "failure").text


def test_coalesced_chunks_make_only_checks_of_gaps_an_error(suite):
    """The error rate of the same run is judged: it needs no gaps."""
    suite.settings(coalesced_limit=0.05)
    gaps, no_gaps = faulty_test("coalesces", "itl_p50 <= 10s"), faulty_test("coalesces", "error_rate == 0")
    result, junit = suite.run(gaps + no_gaps.replace("test_x", "test_y"))
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 10
    assert "% of the chunks arrived together with the chunk before" in next(junit.iter("error")).text


LATE = LOAD_PROCESSES + """
from pytest_llmperf import constant

@pytest.mark.engine(stub())
def test_x(engine, perf):
    perf.measure(engine, FEW, runs=1)
    open_loop = random_tokens(input=8, output=20, arrivals=constant(20), requests=80)
    engine._handle.warmed_for.add(str(open_loop))
    stop_next(1.5, lambda load_process: load_process)
    perf.check(perf.measure(engine, open_loop, runs=1), "ttft_p50 <= 10s")
"""


def test_late_load_generator_makes_test_an_error(suite):
    """Fault 40."""
    suite.settings(send_delay_p99_limit_ms=700)
    result, junit = suite.run(LATE)
    assert result.ret == 10
    assert "load generator saturated: requests were sent " in only(junit, "error").text


def test_short_answers_in_warm_up_are_an_error(suite, monkeypatch):
    """Fault 43 in the warm-up already."""
    monkeypatch.setenv("STUB_AFTER", "0")
    result, junit = suite.run(faulty_test("short", "error_rate == 0"))
    assert result.ret == 10
    assert "warm-up requests failed (6 × wrong length" in only(junit, "error").text


def test_flag_that_server_ignores_makes_test_an_error(suite):
    """Fault 44."""
    result, junit = suite.run(
        ""
        "@pytest.mark.engine(stub().with_flags(max_num_seqs=8))\ndef test_x(engine): pass\n"
        "@pytest.mark.engine(stub().with_flags(max_num_seqs=64))\ndef test_y(engine): pass\n"
    )
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 10
    assert "asks for max_num_seqs=8, and the server resolved it to 64" in only(junit, "error").text


@pytest.mark.parametrize(
    ("slo", "code", "tag"), [("ttft_p99 <= 10s", 11, "skipped"), ("ttft_p99 <= 0.001ms", 1, "failure")]
)
def test_few_requests_cannot_pass_p99_slo_but_can_fail(suite, slo, code, tag):
    """Fault 42: 12 requests prove no p99, however good they are; they may well disprove it."""
    result, junit = suite.run(faulty_test("", slo))
    assert result.ret == code
    assert only(junit, tag) is not None


def test_missing_counters_affect_only_tests_that_judge_counters(suite):
    """Fault 45."""
    result, junit = suite.run(
        faulty_test("no-metrics", "error_rate == 0", "preemptions == 0")
        + faulty_test("no-metrics", "error_rate == 0").replace("test_x", "test_y")
    )
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 10
    text = only(junit, "error").text
    assert "preemptions" in text
    assert "PASS" in text
