"""Replays measured runs with coefficients that were fitted without these runs.

docs/emulator_accuracy.md has the whole table. The test replays only runs with at most 128 clients, to save time.
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
sys.path.insert(0, str(ROOT / "scripts"))

from emulator_fit.errors import errors_of, outcomes  # noqa: E402
from emulator_fit.rows import sha256_of  # noqa: E402
from emulator_fit.splits import HELD_OUT, read_splits  # noqa: E402

MOST = 128


@pytest.fixture(scope="module")
def splits():
    return {split.name: split for split in read_splits(ROOT)}


@pytest.fixture(scope="module")
def folds(splits):
    """Of each held-out run of a dense model, once."""
    rows = {name: [r for r in split.rows if r.dense and r.concurrency <= MOST] for name, split in splits.items()}
    return [o for name, split in splits.items() if name.startswith("fold") for o in outcomes(split, rows[name])]


def test_accuracy_page_names_digest_of_stored_data():
    assert f'"sha256": "{sha256_of()}"' in (ROOT / HELD_OUT).read_text(encoding="utf-8")


def test_every_run_is_held_out_once(splits):
    held = [row.id for name, split in splits.items() if name.startswith("fold") for row in split.rows]
    assert len(held) == len(set(held))
    configurations = [{r.configuration for r in s.rows} for name, s in splits.items() if name.startswith("fold")]
    assert sum(map(len, configurations)) == len(set.union(*configurations))


def test_emulator_errors_of_dense_models_are_below_limits(folds):
    errors = errors_of(folds)
    assert errors.runs >= 150
    assert errors.tpot_mean <= 8
    assert errors.tpot_median <= 5
    assert errors.ttft_median <= 15


@pytest.mark.thorough
def test_emulator_errors_from_h100_to_h200_are_below_limits(splits):
    split = splits["H100 → H200"]
    errors = errors_of(outcomes(split, [row for row in split.rows if row.dense and row.concurrency <= MOST]))
    assert errors.runs >= 30
    assert errors.tpot_mean <= 8
    assert errors.tpot_median <= 5
    assert errors.ttft_median <= 15


def test_saturated_runs_have_expected_tpot_and_ttft(folds):
    """A regression test, no evidence: most of these runs' memory settings were inferred from the runs themselves.

    Half of the running sequences more or less would change TTFT by far more than this.
    """
    full = [outcome for outcome in folds if outcome.row.ttft_ms > 6000 and outcome.row.saturated]
    assert len(full) >= 6
    for outcome in full:
        assert abs(outcome.tpot) < 0.15
        assert abs(outcome.ttft) < 0.30
