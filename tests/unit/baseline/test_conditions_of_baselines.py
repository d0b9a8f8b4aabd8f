"""Which conditions must be equal."""

from dataclasses import replace

import pytest

from pytest_llmperf.results.conditions import differences, fingerprint_of


def shown(make, conditions, primaries=("tpot_mean",), across=(), **stored):
    return [str(difference) for difference in differences(make.history(1.0, **stored), conditions, primaries, across)]


def test_equal_conditions_have_no_difference(make):
    assert shown(make, make.CONDITIONS) == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"engine.version": "2.0"}, "engine.version: 1.0 stored, 2.0 now"),
        ({"driver": "570"}, "driver: absent stored, 570 now"),
        ({"model": "n"}, "model: m stored, n now"),
        ({"treatment": "keeps l1"}, "treatment: absent stored, keeps l1 now"),
    ],
)
def test_each_changed_condition_is_a_difference_unless_allowed(make, changed, text):
    """Fault 57."""
    assert shown(make, make.CONDITIONS | changed) == [text]
    assert shown(make, make.CONDITIONS | changed, across=tuple(changed)) == []
    assert shown(make, make.CONDITIONS | changed, across=("other",)) == [text]


@pytest.mark.parametrize(
    ("field", "was", "now"),
    [
        ("cuda", "12.9", "13.0"),
        ("cpu", "AMD EPYC 7763", "Intel Xeon"),
        ("cpu_cores", "64", "2"),
        ("host_env.VLLM_USE_FLASHINFER_SAMPLER", "0", "unset"),
    ],
)
def test_condition_missing_in_older_baseline_differs_once_stored(make, field, was, now):
    assert shown(make, make.CONDITIONS | {field: now}) == []
    stored = replace(make.history(1.0), fingerprint=make.CONDITIONS | {field: was})
    for conditions, text in ((make.CONDITIONS | {field: now}, now), (make.CONDITIONS, "absent")):
        found = differences(stored, conditions, ("tpot_mean",))
        assert [str(one) for one in found] == [f"{field}: {was} stored, {text} now"]


def test_missing_condition_is_a_difference(make):
    less = {name: value for name, value in make.CONDITIONS.items() if name != "model"}
    assert shown(make, less) == ["model: m stored, absent now"]


def test_changed_formula_differs_only_for_compared_metric(make):
    assert shown(make, make.CONDITIONS, tpot_mean="tpot.0/mean") == [
        "formula of tpot_mean: tpot.0/mean stored, tpot.1/mean now"
    ]
    assert shown(make, make.CONDITIONS, primaries=("ttft_p50",), tpot_mean="tpot.0/mean") == []


def test_new_secondary_metric_keeps_baseline_comparable(make):
    assert "formulas" not in fingerprint_of(make.CONDITIONS)
    assert shown(make, make.CONDITIONS | {"formulas": "another digest"}) == []
