"""Fields that a change of the code changed in a run folder, and fields that every two sessions have different."""

import gzip
import json

import pytest

TEST = {"test": "t.py::test_x", "checks": [{"subject": "ttft_p99 <= 500ms", "verdict": "PASS", "estimate": 471.25}],
        "measurements": [{"runs": [{"started_at": "2026-11-26T15:00:00+00:00", "seed": 0, "metrics": {"ttft_p50": 50.0},
                                    "counters": {"prompt_tokens": 12.0}}]}],
        "error": None}


@pytest.fixture
def folder(tmp_path):
    """Writes the run folder of one test."""

    def write(name, test=TEST, arrivals=(1, 2, 3)):
        for kind in ("tests", "requests"):
            (tmp_path / name / kind).mkdir(parents=True)
        (tmp_path / name / "tests" / "x.json").write_text(json.dumps(test))
        requests = gzip.compress(json.dumps({"arrivals_ns": list(arrivals)}).encode())
        (tmp_path / name / "requests" / "x.1.json.gz").write_bytes(requests)
        return str(tmp_path / name)

    return write


@pytest.fixture
def main(load_script):
    return load_script("compare_run_folders").main


def changed(**fields):
    return json.loads(json.dumps(TEST)) | fields


def test_sessions_that_differ_in_dates_and_places_are_equal(main, folder, capsys):
    later = changed(error="The log is in /tmp/b/20261126T160000Z-bbbbbb/server.log.")
    later["measurements"][0]["runs"][0]["started_at"] = "2026-11-26T16:00:00+00:00"
    earlier = changed(error="The log is in /tmp/a/20261126T150000Z-aaaaaa/server.log.")
    assert main([folder("before", earlier), folder("after", later)]) == 0
    assert capsys.readouterr().out.startswith("1 tests, 1 checks, 11 fields: 0 differences")


@pytest.mark.parametrize(("after", "arrivals", "difference"), [
    (changed(checks=[TEST["checks"][0] | {"verdict": "FAIL"}]), (1, 2, 3), ".checks[0].verdict: 'PASS' → 'FAIL'"),
    (changed(checks=[TEST["checks"][0] | {"estimate": None}]), (1, 2, 3), ".checks[0].estimate: 471.25 → None"),
    (changed(checks=[]), (1, 2, 3), ".checks[0].verdict: 'PASS' → None"),
    (TEST, (1, 2, 4), "requests/x.1.json.gz .arrivals_ns[2]: 3 → 4"),
])
def test_changed_field_is_listed_and_ends_with_exit_code_1(main, folder, capsys, after, arrivals, difference):
    assert main([folder("before"), folder("after", after, arrivals)]) == 1
    assert difference in capsys.readouterr().out


def test_folders_without_tests_are_not_equal(main, tmp_path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    assert main([str(tmp_path / "before"), str(tmp_path / "after")]) == 1
