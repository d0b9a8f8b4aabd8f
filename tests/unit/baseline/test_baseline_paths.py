"""Where a test's baseline lies: readable, inside the folder, nobody else's."""

from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_llmperf.baseline.paths import bare_test, baseline_path
from pytest_llmperf.results.conditions import kind_of


@pytest.mark.parametrize(
    ("test", "kind", "path"),
    [
        ("suites/test_serving.py::test_x", "h200", "h200/serving/test_x.json"),
        ("suites/test_serving.py::test_x[h200]", "h200", "h200/serving/test_x.json"),
        ("suites/test_serving.py::test_x[h200]", "emulated-h200", "emulated-h200/serving/test_x.json"),
        ("suites/test_serving.py::test_x[h200-engine0]", "h200", "h200/serving/test_x-engine0.json"),
        ("suites/test_serving.py::test_x[engine0-h200]", "h200", "h200/serving/test_x-engine0.json"),
        ("suites/test_serving.py::test_x[l4]", "h200", "h200/serving/test_x-l4.json"),
        ("test_a.py::TestIt::test_x[1.5-b]", "cpu", "cpu/a/TestIt.test_x-1.5-b.json"),
        ("checks.py::test_x", "cpu", "cpu/checks/test_x.json"),
    ],
)
def test_baseline_path_follows_kind_suite_and_test(test, kind, path):
    assert baseline_path(test, kind) == path


@pytest.mark.parametrize(
    ("test", "bare"),
    [
        ("t.py::x[h200]", "t.py::x"),
        ("t.py::x[a-h200-b]", "t.py::x[a-b]"),
        ("t.py::x[h200x]", "t.py::x[h200x]"),
        ("t.py::x[a[h200]]", "t.py::x[a[h200]]"),
        ("t.py::x", "t.py::x"),
    ],
)
def test_only_hardware_kind_is_removed_from_test_id(test, bare):
    assert bare_test(test, "h200") == bare


def test_hardware_kind_is_read_from_conditions():
    assert kind_of({"hardware": "emulated h200"}) == "emulated-h200"
    assert kind_of({"hardware": "cpu"}) == "cpu"
    assert kind_of({}) == "unknown"


def test_gpus_without_a_marker_lie_apart():
    models = ("NVIDIA L40", "NVIDIA B300", "NVIDIA GeForce RTX 5090", "../../x")
    kinds = [kind_of({"hardware": "other-gpu", "gpu": model}) for model in models]
    assert kinds[:3] == ["other-gpu-nvidia-l40", "other-gpu-nvidia-b300", "other-gpu-nvidia-geforce-rtx-5090"]
    assert all(baseline_path("t.py::x", kind).startswith(f"{kind}/") for kind in kinds)
    assert "/" not in kinds[-1]
    assert kind_of({"hardware": "other-gpu"}) == "other-gpu"  # of an endpoint's machine nothing is known
    assert kind_of({"hardware": "h200", "gpu": "NVIDIA H200"}) == "h200"


names = st.text(max_size=30) | st.sampled_from(["x", "x[a]", "x[a/b]", "x[a-b]", "x[..]", "../../x", "x-a", "", "."])
plain = st.from_regex(r"x(\[[ab./-]{0,3}\])?", fullmatch=True)


@given(names, names, names)
def test_baseline_path_stays_inside_kind_and_suite_folder(kind, suite, name):
    path = PurePosixPath(baseline_path(f"{suite}::{name}", kind))
    assert len(path.parts) == 3
    assert not {"", ".", ".."} & set(path.parts)
    assert not path.is_absolute()
    assert not any(part.startswith(".") for part in path.parts[:2])
    assert all(len(part.encode()) <= 255 for part in path.parts)
    assert path.suffix == ".json"


@given(names | plain, names | plain)
@example("x[a]", "x-a")
@example("x[a/b]", "x[a-b]")
@example("x[]", "x-")
@example("a::b", "a.b")
def test_different_test_ids_have_different_baseline_paths(first, other):
    if first != other:
        assert baseline_path(f"t.py::{first}", "h200") != baseline_path(f"t.py::{other}", "h200")


@pytest.mark.parametrize("wrong", ["../../etc", "h200/../../x", "..", ".update", "a b", "é"])
def test_unsafe_kind_or_suite_name_is_replaced(wrong):
    kind, suite, _ = baseline_path(f"{wrong}.py::test_x", wrong).split("/")
    assert "~" in kind
    assert suite != wrong


def test_long_names_are_cut_and_stay_apart():
    first, other = (baseline_path(f"t.py::test_x[{'a' * 300}{end}]", "h200") for end in "bc")
    assert first != other
    assert len(first) < 200
