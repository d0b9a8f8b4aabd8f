"""What sessions on one's own machine say of a comparison is what a comparison there does."""

import subprocess
from random import Random
from types import SimpleNamespace

import pytest

from pytest_llmperf.calibration.aa_sessions import (
    alarm_text,
    calibrate_metrics,
    compared_measurements,
    run_sessions,
    table,
)
from pytest_llmperf.errors import UsageError
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.stats.priors import Margins
from pytest_llmperf.testing.waiting import until


class Stored:
    """Baselines of each kind, with so many primaries in all."""

    def __init__(self, h200=0, a100=0):
        self.primaries = {"h200": h200, "a100": a100}

    def read_all(self, kind):
        primaries = tuple(f"ttft_p{n}" for n in range(self.primaries[kind]))
        return {"t": Baseline("t", {"": StoredMeasurement({}, (), primaries, {})})}


def sessions(primaries=("tpot_mean",), margins=None, hardware="h200", **metrics):
    """Nine sessions of three runs each, with a spread of half a per cent. One metric needs nine sessions."""
    noise = Random(7)

    def measured():
        values = [{"tpot_mean": 10 * noise.gauss(1, 0.005)} | metrics for _ in range(3)]
        runs = tuple(Run.of_values(seed, 1, run_values) for seed, run_values in enumerate(values))
        return Measurement(
            "e", "w", {"hardware": hardware}, runs, baseline="", primaries=primaries, margins=margins or {}
        )

    return {("t", ""): [measured() for _ in range(9)]}


def seen(*given):
    (line,), unknown = calibrate_metrics(*given)
    assert unknown == []
    return line.detectable[8]


def test_the_error_is_shared_with_all_that_is_stored():
    assert seen(sessions(), Stored(13)) > 1.05 * seen(sessions(), Stored(1)) == 1.05 * seen(sessions(), Stored())


@pytest.mark.parametrize(("stored", "advice"), [
    (9, 'Widen its margin (margins={"tpot_mean": …}), store more sessions, or quieten the machine.'),
    (3, "Store at least 9 sessions: fewer let only larger changes fail."),
])
def test_warning_names_wider_margin_only_where_enough_sessions_ran(stored, advice):
    measured = {key: runs[:stored] for key, runs in sessions(margins={"tpot_mean": Margins(0.001, 0.002)}).items()}
    calibrated, _ = calibrate_metrics(measured, Stored())
    assert table(calibrated, [], stored).splitlines()[-1].endswith(f"goes unseen here. {advice}")


def test_each_hardware_kind_has_a_separate_detectable_change():
    (h200,), (a100,) = (sessions(hardware=kind).values() for kind in ("h200", "a100"))
    for both in ({("t", "h200"): h200, ("t", "a100"): a100}, {("t", "a100"): a100, ("t", "h200"): h200}):
        calibrated, _ = calibrate_metrics(both, Stored(h200=13))
        limits = {line.test: line.detectable[8] for line in calibrated}
        assert limits == {"t h200": seen(sessions(), Stored(13)), "t a100": seen(sessions(), Stored())}


def test_wide_margin_makes_detectable_change_larger():
    assert seen(sessions(margins={"tpot_mean": Margins(0.2, 0.5)}), Stored()) > 0.2 > 2 * seen(sessions(), Stored())


def test_detectable_change_depends_on_negligible_margin():
    """The smallest detectable change depends on the negligible margin."""
    narrow, wide = (seen(sessions(margins={"tpot_mean": Margins(share, 0.5)}), Stored()) for share in (0.01, 0.2))
    assert narrow < 0.1 < 0.2 < wide


def test_uncalibrated_metrics_are_named_with_reason():
    calibrated, unknown = calibrate_metrics(
        sessions(("tpot_mean", "preemptions", "itl_p99"), preemptions=0.0), Stored()
    )
    assert [line.metric for line in calibrated] == ["tpot_mean"]
    assert [line.partition(": a run")[0] for line in unknown] == ["t: preemptions", "t: itl_p99"]
    assert "Not calibrated: t: preemptions: a run's value is 0" in table(calibrated, unknown, 5)
    with pytest.raises(UsageError, match=r"t: itl_p99: a run's value is missing.* --sessions 5"):
        calibrate_metrics(sessions(("itl_p99",)), Stored())


def session_with(verdict, error=None):
    measurement = Measurement("e", "w", {"hardware": "h200"}, (Run.of_values(0, 1, {"tpot_mean": 1.0}),), baseline="")
    check = CheckResult("tpot_mean <= 5ms", verdict, "tpot_mean")
    return [TestResult("t", error is None, error, (measurement,), (check,))]


def test_each_fail_and_error_of_unchanged_sessions_counts_as_false_alarm():
    sessions = [session_with(Verdict.PASS), session_with(Verdict.FAIL), session_with(Verdict.ERROR),
                session_with(Verdict.PASS, error="the server died"), session_with(Verdict.INCONCLUSIVE)]
    shown = alarm_text(sessions)
    assert shown.startswith("3 of 5 sessions have a FAIL or an ERROR")
    assert [line.split(": ")[0] for line in shown.splitlines()[1:]] == ["session 2", "session 3", "session 4"]
    assert "the server died" in shown
    # A FAIL is a valid measurement; an ERROR and a test without an end are none.
    assert {key: len(runs) for key, runs in compared_measurements(sessions).items()} == {("t", ""): 3}


@pytest.mark.parametrize("emulate", [["--emulate", "h200"], ["--emulate=h200"]])
def test_emulated_sessions_use_different_seeds(tmp_path, monkeypatch, emulate):
    requested_seeds = []

    def popen(command, **_options):
        requested_seeds.append(command)
        (tmp_path / "session-01" / "x" / "tests").mkdir(parents=True)
        (tmp_path / "session-01" / "x" / "tests" / "t.json").touch()
        return SimpleNamespace(communicate=lambda: (b"1 passed", b""), returncode=0)

    monkeypatch.setattr("pytest_llmperf.calibration.aa_sessions.subprocess.Popen", popen)
    run_sessions(emulate, 1, tmp_path, tmp_path, print)
    assert requested_seeds[0][-2:] == ["--emulate-seed", "1"]


SESSION = """
import pathlib, signal, sys, time

def end(*_):
    pathlib.Path("ended").touch()
    sys.exit(2)

signal.signal(signal.SIGTERM, end)
pathlib.Path("begun").touch()
time.sleep(60)
"""


def test_interrupt_ends_pytest_session_by_sigterm(tmp_path, monkeypatch):
    """Killed at once, the session would not stop its servers."""
    def interrupted(_process):
        until((tmp_path / "begun").exists)
        raise KeyboardInterrupt

    (tmp_path / "pytest.py").write_text(SESSION)
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sessions([], 1, tmp_path / "runs", tmp_path, print)
    assert (tmp_path / "ended").exists()
