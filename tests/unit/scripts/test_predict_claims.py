"""Predictions beside measurements: a run folder that was measured stands in for an emulated one."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.reader import read_run

ROOT = Path(__file__).parents[3]
MEASURED = ROOT / "docs" / "measured" / "h200"


@pytest.fixture(scope="module")
def predicting(load_script):
    return load_script("predict_claims")


@pytest.fixture
def place(tmp_path):
    (folder,) = MEASURED.glob("f-*")
    shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path


def test_claim_row_marks_hosts_used_for_fitting(predicting, place):
    table = predicting.claims_table(predicting.rows(place, MEASURED)).splitlines()
    hosts = [line.split(" | ")[4] for line in table if "`test_two_gpus_decode" in line]
    assert hosts
    assert all(cell.startswith("c\\* f") for cell in hosts)
    assert not any("\\*" in line for line in table if "`test_answers_come" in line)
    suites = "".join(path.read_text() for path in ROOT.glob("suites/test_*.py"))
    assert all(f"def {name}(" in suites for name in predicting.FITTED["h200"])


def test_claim_has_one_row_with_median_and_verdicts_over_hosts(predicting, place):
    table = predicting.claims_table(predicting.rows(place, MEASURED)).splitlines()
    (serving,) = [line for line in table if "`tpot_p95 <= 20ms`" in line]
    test, claim, median, extremes, hosts, verdicts, emulated, ratio = serving.strip("| ").split(" | ")
    assert (test, claim, emulated) == ("`test_answers_come_in_time[h200]`", "`tpot_p95 <= 20ms`", "7.543 ms")
    assert float(ratio) == pytest.approx(7.543 / float(median.removesuffix(" ms")), abs=0.01)
    least, most = (float(end) for end in extremes.split(" – "))
    assert least <= float(median.removesuffix(" ms")) <= most
    assert hosts.startswith("e f g j")
    assert verdicts == f"{len(hosts.split())} PASS"
    assert not any("chunk_budget" in line for line in table), "a mechanism is no claim"


def _check(subject):
    return CheckResult(subject, Verdict.PASS, metric=subject.split(" >= ")[0].split(" <= ")[0])


def test_each_limit_of_metric_is_matched_to_separate_measurement(predicting):
    (test,) = read_run(next(MEASURED.glob("i-*ee591c")))
    lower, upper = (_check(f"spec_acceptance_length(a) {limit}") for limit in (">= 2.25", "<= 2.75"))
    predicted = SimpleNamespace(checks=(lower, upper))
    assert predicting._measured(predicted, test, lower) == pytest.approx(2.495, abs=5e-4)
    assert predicting._measured(predicted, test, upper) == pytest.approx(2.507, abs=5e-4)


def test_measurement_is_found_for_changed_limit_and_later_claim(predicting):
    (test,) = read_run(next(MEASURED.glob("c-*")))
    checks = [_check(f"{metric}(b) / {metric}(a) >= 1.3") for metric in ("tpot_mean", "itl_p50")]
    checks.append(_check("eager(a) <= 1"))
    predicted = SimpleNamespace(checks=checks)
    *ratios, eager = [predicting._measured(predicted, test, check) for check in checks]
    assert ratios == pytest.approx([1.47, 1.42], abs=5e-3)
    assert eager is None


def test_repeated_ratio_of_test_is_matched_by_position(predicting):
    (test,) = (each for each in read_run(next(MEASURED.glob("C-*d75b94"))) if "gain_less" in each.test)
    ratio = "itl_p50(launched) / itl_p50(replayed)"
    checks = [CheckResult(f"{ratio}{limit}", Verdict.PASS, metric=ratio) for limit in ("", "", "", " <= 4.01")]
    predicted = SimpleNamespace(checks=checks)
    ratios = [predicting._measured(predicted, test, check) for check in checks]
    assert ratios == pytest.approx([7.23, 4.89, 4.63, 5.33], abs=5e-3)
    assert predicting._verdict(predicted, test, checks[0]) == "REPORTED"
    assert predicting._verdict(predicted, test, checks[3]) == "with another limit"


def test_repeated_limit_of_other_engine_has_no_measurement(predicting):
    (test,) = (each for each in read_run(next(MEASURED.glob("C-*d75b94"))) if "larger_blocks" in each.test)
    checks = [_check("kv_fragmentation >= 1.6%"), _check("kv_fragmentation >= 3.32%")]
    predicted = SimpleNamespace(checks=checks)
    other_engine, same = [predicting._measured(predicted, test, check) for check in checks]
    assert other_engine is None
    assert same == pytest.approx(0.05495, abs=5e-6)


def test_part_of_a_page_replaces_the_one_before(load_script):
    with_part = load_script("markdown_pages").with_part
    begin, end = "<!-- claims: written by a script -->", "<!-- end of claims -->"
    other = "<!-- hosts: written by a script -->\n\nkept\n\n<!-- end of hosts -->"
    page = "head\n" + begin + "\n\n{}\n\n" + end + "\n" + other + "\ntail\n"
    assert with_part(page.format("old"), "claims", r"new \1") == page.format(r"new \1")
    with pytest.raises(ValueError, match="the page has no lines"):
        with_part("no place", "claims", "new")


def test_guard_metrics_are_excluded_from_requirements(predicting):
    claimed = "ttft_p50(b) / ttft_p50(a) >= 3"
    subjects = [claimed, "ttft_p50(a) / ttft_p50(b) <= 1.15", "tpot_mean(a) / tpot_mean(b) <= 1.05"]
    judged = SimpleNamespace(checks=[CheckResult(subject, Verdict.PASS) for subject in subjects])
    assert [check.subject for check in predicting._requirements(judged)] == [claimed]
