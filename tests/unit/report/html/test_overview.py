"""Title, tiles, rows and groups of a report, and its copy as CSV."""

import csv
import io
from dataclasses import replace

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.html.overview import bar_of, csv_text, groups, headline, headroom_text, row_of, tiles
from pytest_llmperf.report.html.session_facts import SessionFacts, canary_texts, session_facts
from pytest_llmperf.results.causes.comparisons import RatioMissesLimit, Worse
from pytest_llmperf.results.causes.limits import BeyondLimit, RunsMissLimit
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval

H200 = {"hardware": "h200", "engine": "vllm", "engine.version": "0.26.0", "driver": "580.1"}


def measurement_with(values, conditions=H200):
    run = Run.of_values(0, 1, {"duration_s": 10.0, "request_throughput": 9.0, "error_rate": 0.1, **values})
    return Measurement("e", "w", conditions, (run,))


def ended(*checks, name="t.py::test_x", conditions=H200, error=None):
    return TestResult(name, not error, error, (measurement_with({}, conditions),), checks)


def at_most(limit, estimate, *, verdict=Verdict.PASS, metric="ttft_p50", unit=Unit.MS, cause=None, interval=None,
            **facts):
    return CheckResult(f"{metric} <= {limit}", verdict, metric, unit, Comparison.AT_MOST, limit, estimate, interval,
                       cause=cause, facts=facts)


FAILED = at_most(10, 12, verdict=Verdict.FAIL, cause=BeyondLimit())


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ([ended(FAILED), ended(at_most(10, 9)), ended(at_most(10, 9))],
         "1 of 3 FAIL · H200 · vLLM 0.26.0 · driver 580.1 · 14 min"),
        ([ended(at_most(10, 9))], "1 of 1 PASS · H200 · vLLM 0.26.0 · driver 580.1 · 14 min"),
        ([ended(FAILED), ended(error="It died."), ended(at_most(10, 9))],
         "1 ERROR, 1 FAIL of 3 · H200 · vLLM 0.26.0 · driver 580.1 · 14 min"),
        ([ended(at_most(10, 9), conditions={"hardware": "emulated h200", "engine": "sglang", "driver": "none",
                                            "engine.version": "0.5.15+emulated"})],
         "1 of 1 PASS · emulated H200 · SGLang 0.5.15 · 14 min"),
    ],
)  # fmt: skip
def test_title_counts_verdicts_and_names_hardware_build_and_duration(tests, expected):
    assert headline(tests, SessionFacts(duration_s=830)) == expected


def test_title_of_many_builds_states_the_number_of_builds(message):
    tests = [ended(at_most(10, 9), conditions=H200 | {"engine.version": str(version)}) for version in range(3)]
    message(headline(tests, SessionFacts()))


def test_tiles_have_totals_and_the_range_of_each_metric():
    measured = [measurement_with({"ttft_p50": value, "output_throughput": 100.0}) for value in (20.0, 35.5)]
    test = TestResult("t", True, None, tuple(measured), ())
    tile_by_name = {tile.name: (tile.value, tile.unit, tile.note) for tile in tiles([test])}
    assert tile_by_name == {
        "Requests": ("200", "", "20 failed, 2,000 output tokens"),
        "Output throughput": ("100", "tokens/s", "over 2 measurements"),
        "TTFT, median": ("20 – 35.5", "ms", "over 2 measurements"),
    }


def test_tiles_of_one_claim_have_both_sides():
    measured = [replace(measurement_with({"ttft_p50": value}), side=side) for side, value in (("a", 20.0), ("b", 35.5))]
    tile_by_name = {tile.name: tile.value for tile in tiles([TestResult("t", True, None, tuple(measured), ())])}
    assert tile_by_name["TTFT, median"] == "A 20 · B 35.5"


@pytest.mark.parametrize(
    ("check", "text", "good"),
    [
        (at_most(10, 7), "+30 %", True),
        (at_most(10, 12), "-20 %", False),
        (CheckResult("", Verdict.PASS, "x", Unit.RATIO, Comparison.AT_LEAST, 2.0, 6.4), "+220 %", True),
        (at_most(0.05, 0.129, unit=Unit.CHANGE), "-7.9 pp", False),
        (CheckResult("", Verdict.PASS, "x", Unit.CHANGE, Comparison.AT_LEAST, -0.05, 0.01), "+6.0 pp", True),
        (at_most(8, 4, proven_rate=2), "+75 %", True),
    ],
)
def test_headroom_is_distance_from_limit_with_good_side_positive(check, text, good):
    assert headroom_text(check) == text
    assert bar_of(check).good is good


def test_failed_comparison_is_measured_from_the_negligible_margin():
    check = at_most(0.25, 0.127, unit=Unit.CHANGE, verdict=Verdict.FAIL, cause=Worse(0.1), negligible=0.1)
    row = row_of(ended(check), "a")
    assert (row.limit, row.headroom, row.bar.good) == ("≤ +10.0 % negligible", "-2.7 pp", False)
    row = row_of(ended(at_most(0.25, 0.127, unit=Unit.CHANGE, negligible=0.1)), "a")
    assert (row.limit, row.headroom, row.bar.good) == ("≤ +25.0 % tolerated", "+12.3 pp", True)


@pytest.mark.parametrize("check", [at_most(0, 0), at_most(10, None), at_most(None, 3), CheckResult("x", Verdict.PASS)])
def test_check_without_a_distance_has_no_headroom_and_no_bar(check):
    assert (headroom_text(check), bar_of(check)) == ("", None)


def test_bar_starts_at_the_limit_and_ends_at_100_percent_headroom():
    bar = bar_of(at_most(10, 5, interval=Interval(4, 30, 0.95)))
    assert (bar.left, bar.width, bar.low, bar.high) == (50, 25, 0, 80)
    assert bar_of(at_most(10, 50)).left == 0


def test_row_of_a_good_test_shows_the_claim_before_the_mechanism():
    claim, mechanism = at_most(2, 1, metric="ttft_p50(a) / ttft_p50(b)"), at_most(10, 9.9, metric="preemptions(a)")
    assert row_of(ended(mechanism, claim), "a").metric == claim.metric


def test_row_of_a_good_test_shows_the_least_headroom():
    assert row_of(ended(at_most(10, 2), at_most(10, 9, metric="tpot_mean")), "a").metric == "tpot_mean"


def test_row_of_a_bad_test_shows_the_first_cause():
    mechanism = at_most(10, 12, metric="prefix_cache_hit_rate(b)", verdict=Verdict.FAIL, cause=RunsMissLimit(1, 3))
    claim = at_most(2, 3, metric="ttft_p50(a) / ttft_p50(b)", verdict=Verdict.FAIL, cause=RatioMissesLimit())
    row = row_of(ended(claim, mechanism, at_most(10, 1)), "a")
    assert (row.metric, row.measured) == ("prefix_cache_hit_rate(b)", "12 ms")
    assert (row.limit, row.headroom) == ("≤ 10 ms", "-20 %")


def test_row_of_a_search_shows_the_proven_rate():
    row = row_of(ended(at_most(8, 22.6, metric="max_rate", unit=Unit.REQUESTS_PER_S, proven_rate=16.0)), "a")
    assert row.measured == "16/s, proven"


def test_failures_of_one_cause_are_grouped_and_the_others_follow():
    cache = at_most(10, 12, metric="prefix_cache_hit_rate(b)", verdict=Verdict.FAIL, cause=RunsMissLimit(1, 3))
    tests = [ended(at_most(1, 0)), ended(FAILED), ended(cache, name="t.py::test_1"), ended(cache, name="t.py::test_2"),
             ended(error="Port 8001 is taken."), ended(error="Port 8002 is taken.")]
    row_groups = groups([row_of(test, str(number)) for number, test in enumerate(tests)])
    assert [(group.outcome, group.cause, len(group.rows)) for group in row_groups] == [
        ("ERROR", "Port … is taken.", 2),
        ("FAIL", "prefix cache hit rate: runs miss limit", 2),
        ("FAIL", "", 1),
        ("PASS", "", 1),
    ]


def test_csv_has_a_line_per_test_and_no_formula():
    tests = [ended(FAILED, name='t.py::test_x[a,"b"]'), ended(error="=cmd()")]
    rows = list(csv.reader(io.StringIO(csv_text([row_of(test, "a") for test in tests]))))
    assert rows[0] == ["test", "verdict", "metric", "measured", "limit", "headroom", "interval",
                       "before", "after", "reason"]
    assert rows[1][:6] == ['t.py::test_x[a,"b"]', "FAIL", "ttft_p50", "12 ms", "≤ 10 ms", "-20 %"]
    assert rows[2][-1] == "'=cmd()"


def test_session_facts_add_up_folders_and_ignore_values_of_wrong_type(tmp_path):
    for name, text in (("a", '{"duration_s": 60, "skipped": {"needs l4": 2, "x": "y"}, "emulated": "emulated l4"}'),
                       ("b", '{"duration_s": 30, "skipped": {"needs l4": 1}}'), ("c", '{"duration_s": "long"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "session.json").write_text(text)
    facts = session_facts([tmp_path / name for name in "abc"], [ended(conditions=H200 | {"planted": "vllm:eager"})])
    assert (facts.duration_s, facts.skipped, facts.emulated, facts.planted) == (
        90, {"needs l4": 3}, "emulated l4", "vllm:eager")


def test_canary_line_names_host_values_and_missing_gpu(message):
    entries = [{"host": "0a1b", "gpu": "NVIDIA H200", "one_core_ms": 5.25, "kernel_launch_us": 2.1},
               {"host": "2c3d", "one_core_ms": 6, "not_seen": "cuInit: error 100"}, "no entry"]
    message(*canary_texts({"canary": entries}))
    assert canary_texts({"canary": 1}) == []
