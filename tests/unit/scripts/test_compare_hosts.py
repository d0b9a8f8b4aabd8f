"""Hosts against each other: stored sessions of real hardware, and one that is made slower."""

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.judging.baseline_comparison import ComparisonTerms

ROOT = Path(__file__).parents[3]
TEST = "suites/test_serving.py::test_answers_come_in_time"


@pytest.fixture(scope="module")
def comparing(load_script):
    return load_script("compare_hosts")


@pytest.fixture(scope="module")
def stored():
    return Store(ROOT / "baselines").read(TEST, "h200").measurements[""]


def test_each_session_is_compared_with_sessions_of_other_hosts(comparing):
    hosts = comparing.letters(ROOT / "docs" / "measured" / "h200")
    rows = [[host, others, metric] for test, host, others, metric, *_
            in comparing.rows(Store(ROOT / "baselines"), "h200", hosts) if "answers_come" in test]
    everyone = sorted({host for host, *_ in rows})
    assert everyone[:3] == ["e", "f", "g"]
    assert rows == [
        [host, ", ".join(other for other in everyone if other != host), metric]
        for host in everyone for metric in ("itl_p50", "tpot_mean")
    ]  # fmt: skip


def test_session_without_run_folder_is_shown_by_machine_name(comparing):
    """As a pull request of a runner brings it."""
    store = Store(ROOT / "baselines")
    hosts = comparing.letters(ROOT / "docs" / "measured" / "h200")
    unknown = store.read(TEST, "h200").measurements[""].sessions[0]
    rows = list(comparing.rows(store, "h200", {id_: host for id_, host in hosts.items() if id_ != unknown.id}))
    assert [row for row in rows if row[1] == unknown.host]


def test_sessions_of_one_host_are_not_compared(comparing):
    store = Store(ROOT / "baselines")
    same = dict.fromkeys(comparing.letters(ROOT / "docs" / "measured" / "h200"), "a")
    assert list(comparing.rows(store, "h200", same)) == []


@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "PASS"), (4.5, "FAIL")])
def test_a_slower_session_fails_and_an_equal_one_passes(comparing, stored, slower, verdict):
    *others, today = stored.sessions
    tpots = tuple(slower * value for value in today.metrics["tpot_mean"])
    today = replace(today, metrics={**today.metrics, "tpot_mean": tpots})
    terms = ComparisonTerms(("tpot_mean",), {}, 11, "h200", today.host)
    only = replace(stored, sessions=tuple(others), primaries=("tpot_mean",))
    (cells,) = comparing.judged(today, only, terms)
    assert cells[-1] == verdict
