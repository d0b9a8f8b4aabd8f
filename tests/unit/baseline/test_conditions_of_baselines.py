"""Which fields of a measurement must be equal, and which belong to the build under test."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.baseline.text import decode
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.results.conditions import (
    DEFAULT_RULES,
    FieldRules,
    build_changes,
    changed_arguments,
    differences,
    field_rules,
    fingerprint_of,
    is_of_build,
    requested_flags,
    stored_workload,
)

SHIPPED = Path(__file__).parents[3] / "baselines/h200"


def shown(make, conditions, primaries=("tpot_mean",), rules=DEFAULT_RULES, **stored):
    return [str(difference) for difference in differences(make.history(1.0, **stored), conditions, primaries, rules)]


def test_equal_conditions_have_no_difference(make):
    assert shown(make, make.CONDITIONS) == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"gpu.persistence": "on"}, "gpu.persistence: absent stored, on now"),
        ({"model": "n"}, "model: m stored, n now"),
        ({"treatment": "keeps l1"}, "treatment: absent stored, keeps l1 now"),
    ],
)
def test_each_changed_condition_is_a_difference_unless_allowed(make, changed, text):
    """Fault 57."""
    assert shown(make, make.CONDITIONS | changed) == [text]
    assert shown(make, make.CONDITIONS | changed, rules=FieldRules(compare_across=tuple(changed))) == []
    assert shown(make, make.CONDITIONS | changed, rules=FieldRules(compare_across=("other",))) == [text]


LOAD = "random_tokens(input=512, output=128, arrivals=poisson(8))"


@pytest.mark.parametrize(("now", "text"), [
    (LOAD.replace("512", "520"), "workload: input=512 stored, input=520 now"),
    (LOAD.replace("poisson(8)", "poisson(9), text=True"),
     "workload: arrivals=poisson(8), no text stored, arrivals=poisson(9), text=True now"),
    (LOAD.replace("random_tokens", "other"), f"workload: {LOAD} stored, {LOAD.replace('random_tokens', 'other')} now"),
    (LOAD, f"workload: {LOAD} with content d1 stored, content d2 now"),  # the same file name with another content
])
def test_other_workload_is_named_by_the_arguments_that_differ(make, now, text):
    stored = replace(make.history(1.0, conditions=make.CONDITIONS | {"workload": "d1"}), workload=LOAD)
    (difference,) = differences(stored, make.CONDITIONS | {"workload": "d2"}, ["tpot_mean"], workload=now)
    assert str(difference) == text


def test_arguments_of_nested_workloads_are_named_with_their_place():
    before, after = (f"mixed(stream=random_tokens(input={tokens}, output=8), prefill=random_tokens(input=9))"
                     for tokens in (64, 65))
    assert changed_arguments(before, after) == ("stream.input=64", "stream.input=65")
    assert changed_arguments(before, before) is None


def test_terms_of_a_search_are_no_part_of_the_stored_workload():
    conditions = {"search": "max_rate(ttft_p99 <= 500ms)"}
    assert stored_workload(f"{LOAD}, max_rate(ttft_p99 <= 500ms)", conditions) == LOAD
    assert stored_workload(f"at_times(({'0.5, ' * 400}))", conditions) is None


@pytest.mark.parametrize(("commit", "text"), [
    ("abc-dirty", f"workload: as in commit abc (git diff abc shows what changed) stored, {LOAD} now"),
    (None, f"workload: d1 stored, {LOAD} now"),
])
def test_baseline_without_workload_text_names_the_commit_that_shows_the_change(make, commit, text):
    conditions = make.CONDITIONS | {"workload": "d1"}
    stored = make.stored(replace(make.session(0, tpot_mean=1.0), commit=commit), conditions=conditions)
    (difference,) = differences(stored, make.CONDITIONS | {"workload": "d2"}, ["tpot_mean"], workload=LOAD)
    assert str(difference) == text


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"engine.version": "2.0"}, "engine.version: 1.0 stored, 2.0 now"),
        ({"driver": "570"}, "driver: absent stored, 570 now"),
        ({"installation": "old"}, "installation: absent stored, old now"),
        ({"engine.max_num_seqs": "512"}, "engine.max_num_seqs: absent stored, 512 now"),
    ],
)
def test_changed_build_is_a_difference_only_with_same_build(make, changed, text):
    assert shown(make, make.CONDITIONS | changed) == []
    assert shown(make, make.CONDITIONS | changed, rules=FieldRules(same_build=tuple(changed))) == [text]
    assert shown(make, make.CONDITIONS | changed, rules=FieldRules(same_build=("cuda",))) == []


@pytest.mark.parametrize(
    ("field", "flags", "of_build"),
    [
        ("engine.max_num_batched_tokens", (), True),
        ("engine.max_num_batched_tokens", ("max_num_seqs",), True),
        ("engine.max_num_batched_tokens", ("max_num_batched_tokens",), False),
        ("engine.max_num_batched_tokens", ("chunked_prefill_size",), False),
        ("engine.cache_dtype", ("kv_cache_dtype",), False),
        ("engine.enforce_eager", ("compilation_config",), False),
        ("engine.tp_size", ("tensor_parallel_size",), False),
        ("engine.version", ("version",), True),
        ("engine.lmcache.version", (), True),
        ("engine.lmcache.chunk_size", (), False),
        ("host_env.VLLM_USE_FLASHINFER_SAMPLER", (), True),
        ("host_env.NCCL_NVLS_ENABLE", (), False),
        *((field, (), True) for field in ("driver", "cuda", "installation")),
        *((field, (), False) for field in ("hardware", "gpu", "gpu_count", "gpu.ecc", "cpu", "cpu_cores", "url",
                                           "engine", "model", "weights", "model_alias", "lmcache", "flags", "env",
                                           "workload", "warm_up", "connections", "treatment", "planted", "search")),
    ],
)
def test_each_field_belongs_to_build_or_conditions(field, flags, of_build):
    assert is_of_build(field, flags) is of_build


@pytest.mark.parametrize("path", sorted(SHIPPED.rglob("*.json")), ids=lambda path: path.stem)
def test_shipped_baselines_are_comparable_with_another_build(path):
    """The first run of somebody with another driver, version and installation is not INCOMPARABLE."""
    for stored in decode(path.read_bytes(), str(path)).measurements.values():
        flags = requested_flags(stored.fingerprint)
        assert flags == set(json.loads(stored.fingerprint["flags"]))
        fields = {"engine.version", "driver", "cuda", "host_env.VLLM_USE_FLASHINFER_SAMPLER", "engine.max_num_seqs"}
        now = {**stored.fingerprint, **dict.fromkeys(fields, "another"), "engine.new": "1"}
        assert differences(stored, now, stored.primaries) == ()
        assert fields | {"engine.new"} >= build_changes(stored, stored.sessions, now).keys() >= {"engine.version"}


def test_value_of_asked_flag_is_a_condition(make):
    """Two versions that resolve one flag to two values do not run the same test."""
    requested = make.CONDITIONS | {"flags": '{"max_num_seqs": 0}', "engine.max_num_seqs": "256"}
    stored = replace(make.history(1.0), fingerprint=fingerprint_of(requested))
    differing = differences(stored, requested | {"engine.max_num_seqs": "512"}, ("tpot_mean",))
    assert [str(difference) for difference in differing] == ["engine.max_num_seqs: 256 stored, 512 now"]


def test_flags_that_are_no_json_object_name_no_flag():
    assert requested_flags({"flags": "{"}, {"flags": "[1]"}, {}, {"flags": '{"a": 1}'}) == {"a"}


def test_build_changes_list_values_of_all_sessions_and_of_today(make):
    fingerprint = make.CONDITIONS | {"engine.version": "2.0", "driver": "580", "cuda": "13.0"}
    sessions = (make.session(0, tpot_mean=1.0, differs={"engine.version": "1.0", "cuda": None}),
                make.session(1, tpot_mean=1.0))
    stored = make.stored(*sessions, conditions=fingerprint)
    now = fingerprint | {"engine.version": "3.0", "model": "n"}
    assert build_changes(stored, sessions, now) == {"engine.version": ["1.0", "2.0", "3.0"]}
    assert build_changes(stored, sessions[1:], fingerprint) == {}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (Settings(compare_across=("driver",)), "compare_across names driver, which belongs to the build"),
        (Settings(same_build=("drivr",)), "drivr, which is no field of the build. Did you mean driver?"),
        (Settings(same_build=("version",)), "Did you mean engine.version?"),
        (Settings(same_build=("gpu",)), "Known: cuda, driver, engine.lmcache.version, engine.version"),
    ],
)
def test_field_of_other_class_is_refused_in_settings(settings, problem):
    with pytest.raises(ConfigError) as error:
        field_rules(settings)
    assert problem in str(error.value)


def test_conditions_and_build_fields_are_accepted_in_settings():
    settings = Settings(compare_across=("url", "gpu.ecc"), same_build=("cuda", "engine.max_num_seqs"))
    assert field_rules(settings) == FieldRules(("url", "gpu.ecc"), ("cuda", "engine.max_num_seqs"))


@pytest.mark.parametrize(
    ("field", "was", "now"),
    [
        ("cuda", "12.9", "13.0"),
        ("cpu", "AMD EPYC 7763", "Intel Xeon"),
        ("cpu_cores", "64", "2"),
        ("host_env.NCCL_NVLS_ENABLE", "0", "unset"),
    ],
)
def test_condition_missing_in_older_baseline_differs_once_stored(make, field, was, now):
    rules = FieldRules(same_build=("cuda",))
    assert shown(make, make.CONDITIONS | {field: now}, rules=rules) == []
    stored = replace(make.history(1.0), fingerprint=make.CONDITIONS | {field: was})
    for conditions, text in ((make.CONDITIONS | {field: now}, now), (make.CONDITIONS, "absent")):
        differing = differences(stored, conditions, ("tpot_mean",), rules)
        assert [str(difference) for difference in differing] == [f"{field}: {was} stored, {text} now"]


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
