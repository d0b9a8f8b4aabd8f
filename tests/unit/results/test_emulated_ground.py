"""What an emulated verdict says of the measurements behind the emulator."""

import csv
from pathlib import Path

import pytest

from pytest_llmperf.emulator.cost.shape import read_shape
from pytest_llmperf.results.emulated_ground import FITTED_MODELS, FITTED_VERSIONS, distance, kind_distance, notes

DATA = Path(__file__).parents[3] / "scripts" / "data" / "served_h100_h200.csv"
FITTED = {"hardware": "emulated h200", "engine": "vllm", "model": "llama-3.1-8b", "engine.version": "0.26.0+emulated"}


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, "fitted"),
    ({"model": "phi-4-mini"}, "same kind, other model"),
    ({"engine.version": "0.32.0+emulated"}, "same kind, other engine version"),
    ({"engine": "sglang", "model": "tiny"}, "same kind, other model, other engine version"),
    ({"hardware": "emulated b200"}, "data sheet only: not fitted"),
    ({"hardware": "h200"}, ""),
])
def test_distance_names_what_was_not_fitted(changes, expected):
    assert distance(FITTED | changes) == expected


def test_only_fitted_kinds_have_fitted_step_times():
    assert [kind_distance(kind) for kind in ("h100", "l40s")] == [
        "step times fitted on this kind", "data sheet only: not fitted"]


def test_claim_on_a_flag_that_the_emulator_misses_names_both_ratios():
    longest_first = FITTED | {"flags": '{"schedule_policy": "lpm"}'}
    (ground, missed) = notes([FITTED | {"flags": "{}"}, longest_first])
    assert ground == "emulated h200: fitted"
    assert missed.startswith("known to be missed by the emulator if schedule_policy differs: ")
    assert "2.14 × measured" in missed
    assert notes([longest_first, longest_first]) == ["emulated h200: fitted"]
    assert notes([each | {"hardware": "h200"} for each in (FITTED, longest_first)]) == []


def test_models_and_versions_of_the_stored_runs_are_fitted():
    rows = [row for row in csv.DictReader(DATA.read_text().splitlines()) if row["backend"] in FITTED_VERSIONS]
    assert {read_shape(row["model"]).name for row in rows if "FP8" not in row["model"]} <= {*FITTED_MODELS}
    versions = {(row["backend"], row["backend_version"]) for row in rows} - {("vllm", ""), ("sglang", "glm5-hopper")}
    assert versions <= {(engine, version) for engine, versions in FITTED_VERSIONS.items() for version in versions}


@pytest.mark.parametrize("flags", ["no JSON", "[1]"])
def test_flags_that_are_no_json_object_leave_the_distance_known(flags):
    assert notes([{"hardware": "emulated l4", "flags": flags}]) == ["emulated l4: data sheet only: not fitted"]
