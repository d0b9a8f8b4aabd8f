"""What the doctor finds on machines that are made up, and that every problem has its remedy."""

import sys
from dataclasses import replace
from types import MappingProxyType

import pytest

from pytest_llmperf.baseline.paths import baseline_path
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.doctor.findings import DEVICE, Place, examine
from pytest_llmperf.doctor.suites import suites
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.process.installed import version_in
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession
from pytest_llmperf.telemetry.cpu import Cpu
from pytest_llmperf.telemetry.hardware import Gpu, Hardware, detect

GIB = 1 << 30
H200 = Hardware((Gpu(0, "NVIDIA H200", "h200", 141 * GIB),), driver="560.1", cpu=Cpu("AMD EPYC", 8))


@pytest.fixture
def place(tmp_path):
    """A good machine: an H200, vLLM, room for everything."""
    engine = tmp_path / ".engines" / "vllm" / "bin"
    engine.mkdir(parents=True)
    (engine / "python").symlink_to(sys.executable)
    return Place(tmp_path, Settings(), H200, has_device=True, shm_bytes=8 * GIB, open_files=65536,
                 free_bytes=100 * GIB, hub=tmp_path / "hub", version_in=lambda _environment, _engine: "0.32.0")


def store_baseline(place, kind="h200", **fingerprint):
    session = StoredSession("s", "2026-01-02", None, "h", None, True, ((0, 1),), {"ttft_p50": (40.0,)})
    fields = {"engine": "vllm", "engine.version": "0.32.0", "gpu": "NVIDIA H200", "driver": "560.1"} | fingerprint
    stored = StoredMeasurement(fields, (session,), ("ttft_p50",), {"ttft_p50": "ttft.1/p50"})
    test = "suites/test_s.py::test_a"
    with Store(place.root / "baselines").update() as write:
        write({baseline_path(test, kind): Baseline(test, {"": stored})})


def findings_of(place):
    return list(examine(place))


def problems(place):
    return [finding for finding in findings_of(place) if finding.problem]


def the(findings, part, word):
    (only,) = [finding for finding in findings if finding.part == part and word in finding.text]
    return only


def test_ready_machine_has_no_problems(place, message):
    store_baseline(place)
    assert problems(place) == []
    assert the(findings_of(place), "engines", f"vllm 0.32.0 at {place.root}/.engines/vllm")
    message(*(finding.text for finding in findings_of(place) if finding.part in ("hardware", "baselines")))


def test_a_driver_that_does_not_answer_is_no_machine_without_a_gpu(place):
    class Nvml:
        def nvmlInit(self):
            raise RuntimeError("Driver/library version mismatch")

    broken = replace(place, hardware=detect(Nvml()))
    assert "nvidia-smi" in the(problems(broken), "hardware", "version mismatch").remedy
    assert problems(replace(broken, has_device=False)) == []


def test_unknown_gpu_model_is_a_problem_with_baseline_folder(place):
    other = replace(place, hardware=Hardware((Gpu(0, "NVIDIA L40", None),), driver="560.1"))
    assert "lie under other-gpu-nvidia-l40" in the(problems(other), "hardware", "L40").remedy
    assert "none for other-gpu-nvidia-l40 in" in the(problems(other), "baselines", "none").text


def test_mixed_gpu_kinds_are_a_problem_with_remedy(place):
    mixed = replace(place, hardware=Hardware((*H200.gpus, Gpu(1, "NVIDIA L4", "l4")), driver="560.1"))
    assert "CUDA_VISIBLE_DEVICES" in the(problems(mixed), "hardware", "h200, l4").remedy


@pytest.mark.parametrize(
    ("little", "remedy"),
    [
        ({"hardware": replace(H200, cpu=Cpu("AMD EPYC", 1))}, "load generator"),
        ({"shm_bytes": 64 << 20}, "--shm-size"),
        ({"open_files": 1024}, "ulimit"),
        ({"free_bytes": GIB}, "--llmperf-runs"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_insufficient_resource_is_a_problem_with_remedy(place, little, remedy):
    store_baseline(place)
    (problem,) = problems(replace(place, **little))
    assert remedy in problem.remedy


def test_missing_engine_is_a_problem_only_if_all_engines_are_missing(place):
    assert "pip install sglang" not in " ".join(problem.remedy for problem in problems(place))
    (place.root / ".engines" / "vllm").rename(place.root / "elsewhere")
    missing = [problem for problem in problems(place) if problem.part == "engines"]
    assert {finding.text.partition(" ")[0] for finding in missing} == {"vllm", "sglang"}
    assert all("Install it with" in finding.remedy for finding in missing)


def test_installations_with_names_are_engines_too(place):
    engine = str(place.root / ".engines" / "vllm")
    fields = {"vllm:old": engine, "vllm:own@h200": engine, "vllm:gone": "nowhere", "vllm:l4s@l4": "x", "sglang@l4": "x"}
    here = replace(place, settings=Settings(engines=MappingProxyType(fields)))
    assert the(findings_of(here), "engines", "vllm:old 0.32.0 at")
    assert the(findings_of(here), "engines", "vllm:own 0.32.0 at")
    (wrong,) = [
        problem for problem in problems(here) if problem.part == "engines"
    ]  # another kind's are none of this machine's
    assert "[tool.llmperf.engines] vllm:gone" in wrong.remedy


def test_invalid_engine_settings_are_problems(place):
    settings = Settings(engines=MappingProxyType({"sglang": "nowhere", "vlm": "x"}))
    wrong = [problem for problem in problems(replace(place, settings=settings)) if problem.part == "engines"]
    assert len(wrong) == 2
    assert any("'vlm'" in finding.text for finding in wrong)


def test_environment_without_engine_is_a_problem_with_remedy(place):
    broken = replace(place, version_in=lambda _environment, _engine: None)
    assert the(problems(broken), "engines", "version unknown").remedy


def test_downloaded_hub_models_are_listed(place):
    (place.hub / "models--org--name").mkdir(parents=True)
    assert "org/name" in the(findings_of(place), "models", "downloaded").text


def test_baselines_of_another_build_are_a_problem_only_with_same_build(place, message):
    store_baseline(place, driver="550.0", **{"engine.version": "0.31.0"})
    message(*(finding.text for finding in findings_of(place) if finding.part == "baselines"))
    assert problems(place) == []
    strict = replace(place, settings=Settings(same_build=("driver",)))
    message(*(problem.text for problem in problems(strict)))


def test_baselines_with_other_cuda_are_incomparable_with_same_build(place, message):
    store_baseline(place, cuda="12.9")
    here = replace(place, hardware=replace(H200, cuda="13.0"), settings=Settings(same_build=("cuda",)))
    message(*(problem.text for problem in problems(here)))
    assert the(findings_of(here), "hardware", "CUDA").text == "driver 560.1, CUDA 13.0"


def test_baselines_with_other_cpu_are_reported_as_incomparable(place, message):
    store_baseline(place, kind="cpu", cpu="AMD EPYC", cpu_cores="64")
    here = replace(place, has_device=False, hardware=Hardware(cpu=Cpu("AMD EPYC", 2)))
    message(*(problem.text for problem in problems(here)))
    assert the(findings_of(here), "hardware", "CPU cores").text == "2 CPU cores of AMD EPYC"


def test_unknown_condition_in_compare_across_is_reported(place, message):
    store_baseline(place)
    place = replace(place, settings=Settings(compare_across=("gp", "gpu", "cpu"), same_build=("engine.verson",)))
    finding = the(findings_of(place), "baselines", "compare_across")
    message(finding.text)
    assert not finding.problem
    assert "same_build names engine.verson" in the(findings_of(place), "baselines", "same_build").text


def test_missing_or_corrupt_baselines_are_a_problem(place):
    assert "--update-baselines-new" in the(problems(place), "baselines", "NO_BASELINE").remedy
    store_baseline(place)
    next((place.root / "baselines").rglob("test_a.json")).write_text("{")
    (problem,) = problems(place)
    assert "test_a.json" in problem.text


def test_engine_version_is_read_from_package_metadata(tmp_path):
    here = Environment((sys.executable,), True, None, "here")
    assert version_in(here, "pytest")
    assert version_in(here, "no-such-engine") is None
    assert version_in(Environment(("/no/python",), True, None, "nowhere"), "vllm") is None


SUITE = """
import pytest

@pytest.mark.l4
def test_l4(perf): raise AssertionError("nothing is run")

@pytest.mark.l4
def test_l4_too(perf): pass

def test_any(perf): raise AssertionError("nothing is run")
"""


@pytest.mark.skipif(DEVICE.exists(), reason="what a GPU machine runs depends on its GPU")
def test_doctor_shows_tests_that_would_run_and_reasons_for_others(tmp_path):
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "test_s.py").write_text(SUITE)
    would, skipped = suites(tmp_path, ["suites"])
    assert (would.text, would.problem) == ("1 of 3 tests would run", False)
    assert skipped.text.startswith("2 would not: needs l4; this machine has no GPU")


@pytest.mark.skipif(DEVICE.exists(), reason="this machine has a GPU")
def test_suite_that_only_lacks_a_gpu_is_no_problem(tmp_path):
    (tmp_path / "test_s.py").write_text(SUITE.partition("def test_any")[0])
    would, _ = suites(tmp_path, ["test_s.py"])
    assert (would.text, would.problem) == ("0 of 2 tests would run", False)


def test_laptop_without_gpu_engine_baselines_and_suites_has_no_problems(place):
    assert not any("no engine can start here" in finding.text for finding in findings_of(place))
    (place.root / ".engines" / "vllm").rename(place.root / "elsewhere")
    laptop = replace(place, hardware=Hardware(()), has_device=False)
    assert problems(laptop) == []
    assert any("no engine can start here" in finding.text for finding in findings_of(laptop))
    (absent,) = suites(place.root, [])
    assert not absent.problem
    assert "llmperf doctor PATH" in absent.text


def test_broken_or_missing_suites_are_problems(tmp_path):
    (absent,) = suites(tmp_path, ["suites"])
    assert absent.problem
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "test_s.py").write_text("import no_such_module\n")
    findings = list(suites(tmp_path, ["suites"]))
    assert any("broken" in finding.text and "--collect-only" in finding.remedy for finding in findings)
