"""docs/emulator_accuracy.md belongs to the shipped coefficients, its numbers are the command's output, limits hold."""

import sys
from pathlib import Path
from statistics import fmean, median

import pytest

ROOT = Path(__file__).parents[4]
sys.path.insert(0, str(ROOT / "scripts"))

from emulator_fit import table  # noqa: E402
from emulator_fit.errors import outcome, read_outcomes  # noqa: E402
from emulator_fit.rows import sha256_of  # noqa: E402
from emulator_fit.splits import HELD_OUT, read_splits  # noqa: E402

OUTCOMES = read_outcomes(ROOT)
FOLDS = [each for each in OUTCOMES if each.split.startswith("fold")]
AGAIN = "python scripts/fit_emulator.py --table"


def shortest():
    """Of each line of the table, the run that is replayed most quickly."""
    lines = {}
    for each in OUTCOMES:
        lines.setdefault((table.models(each), table.left_out(each)), []).append(each)
    return [min(of_line, key=lambda each: (each.row.concurrency, each.row.output_tokens, each.row.id))
            for of_line in lines.values()]


def test_accuracy_page_is_rendered_from_the_stored_coefficients_and_replays():
    page = (ROOT / "docs" / "emulator_accuracy.md").read_text(encoding="utf-8")
    assert table.digest(ROOT) in page, f"the page is of other coefficients or replays: run {AGAIN}"
    assert page == table.text(ROOT), f"run {AGAIN}"


@pytest.mark.parametrize("stored", shortest(), ids=lambda each: f"{table.models(each)}, {table.left_out(each)}")
def test_stored_replay_is_what_a_replay_gives_today(stored):
    """One run of each line of the table."""
    splits = {split.name: split for split in read_splits(ROOT)}
    again = outcome(splits[stored.split], stored.row)
    assert (again.tpot, again.ttft) == pytest.approx((stored.tpot, stored.ttft), abs=1e-4), f"run {AGAIN}"


def test_accuracy_page_names_digest_of_stored_data():
    assert f'"sha256": "{sha256_of()}"' in (ROOT / HELD_OUT).read_text(encoding="utf-8")


def test_every_run_is_held_out_once():
    held = [each.row.id for each in FOLDS]
    assert len(held) == len(set(held))
    configurations = [{row.configuration for row in split.rows} for split in read_splits(ROOT) if "fold" in split.name]
    assert sum(map(len, configurations)) == len(set.union(*configurations))


@pytest.mark.parametrize(("split", "runs"), [("fold", 150), ("H100 → H200", 50)])
def test_emulator_errors_of_dense_models_are_below_limits(split, runs):
    outcomes = [each for each in OUTCOMES if each.split.startswith(split) and each.row.dense]
    tpot = [abs(each.tpot) for each in outcomes]
    assert len(outcomes) >= runs
    assert fmean(tpot) <= 0.08
    assert median(tpot) <= 0.05
    assert median(abs(each.ttft) for each in outcomes if not each.row.saturated) <= 0.15


@pytest.mark.parametrize(("split", "most_mean", "most_median"), [("fold", 0.12, 0.09), ("runs", 0.09, 0.06)])
def test_emulator_errors_of_mixtures_are_below_limits(split, most_mean, most_median):
    """Regression limits, a little above the table's errors; no target of the emulator."""
    tpot = [abs(each.tpot) for each in OUTCOMES if each.split.startswith(split) and not each.row.dense]
    assert len(tpot) == 221
    assert fmean(tpot) <= most_mean
    assert median(tpot) <= most_median


def test_saturated_runs_have_expected_tpot_and_ttft():
    """A regression test, not a proof: most memory settings were inferred from the runs themselves.

    Half of the running sequences more or less would change TTFT by far more than this.
    """
    full = [each for each in FOLDS if each.row.dense and each.row.ttft_ms > 6000 and each.row.saturated]
    assert len(full) >= 6
    for each in full:
        assert abs(each.tpot) < 0.15
        assert abs(each.ttft) < 0.30
