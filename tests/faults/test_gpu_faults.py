"""Faults 68 to 75 at the user's door: a pytest run on a stub engine that finds a fake `pynvml` on its path."""

import json

import pytest

FAKE = """
import os
from pytest_llmperf.testing.fake_nvml import FakeGpu, FakeNvml

fake = FakeNvml([FakeGpu(uuid=f"GPU-{i}") for i in range(int(os.environ.get("FAKE_GPUS", "1")))])
gpu = fake.gpus[0]
gpu.used_bytes = int(os.environ.get("FAKE_USED", "0")) << 20
__getattr__ = lambda name: getattr(fake, name)
"""
# The fixture starts the server; then its process holds memory, and what BODY does happens before anything is measured.
SUITE = """
import threading
from pynvml import fake, gpu

def after_next(call, change):
    before = fake.calls.get(call, 0)
    def wait():
        while fake.calls.get(call, 0) == before:
            time.sleep(0.001)
        change()
    threading.Thread(target=wait, daemon=True).start()

@pytest.mark.h200
@pytest.mark.engine(stub())
def test_x(engine, perf):
    gpu.processes = {{engine._handle.unit.process.pid: 70 << 30}}
    gpu.used_bytes = 70 << 30
    {body}
    run = perf.measure(engine, FEW, runs={runs})
    perf.check(run, "error_rate == 0"{slos})
"""


@pytest.fixture
def measured(suite, monkeypatch):
    """Run such a suite; gives (result, JUnit's text of what went wrong, the kept file or None)."""
    (suite.folder / "pynvml.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(suite.folder), prepend=":")
    suite.settings(gpu_interval_s=0.01, gpu_free_timeout_s=0.2)

    def measured(body="pass", *args, runs=1, slo=""):
        slos = f", {slo!r}" if slo else ""
        result, junit = suite.run(SUITE.format(body=body, runs=runs, slos=slos), "-m", "h200", *args)
        error_text = "" if junit is None else "".join(node.text or "" for node in junit.iter("error"))
        return result, error_text, suite.run_files().get("test_x")

    return measured


def test_a_healthy_gpu_is_in_the_run_file(measured, suite):
    result, _, run_file = measured("gpu.power_mw = 650_000; gpu.reasons = 0x4  # sw power cap: an H200 under load")
    assert result.ret == 0
    (run,) = run_file["measurements"][0]["runs"]
    table = run["gpu"]
    assert len(table["at_ns"]) >= 2
    assert table["at_ns"] == sorted(table["at_ns"])
    assert {name: values[0] for name, values in table.items() if name != "at_ns"} == {
        "device": 0, "utilization_pct": 0, "memory_used_bytes": 70 << 30, "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201, "power_w": 650.0, "energy_j": None, "temperature_c": 40, "throttle_reasons": 4,
    }
    assert run["contended"] is None
    assert run["gpu_state"]["pids_visible"]
    assert run["gpu_state"]["sample_ms"] > 0
    (session,) = suite.folder.glob(".llmperf/runs/*/session.json")
    (canary,) = json.loads(session.read_text())["canary"]
    assert canary["gpu"] == "NVIDIA H200"
    assert canary["one_core_ms"] > 0


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("gpu.processes[os.getppid()] = 3 << 30", id="memory", marks=pytest.mark.thorough),
        pytest.param("gpu.processes[os.getppid()] = 1 << 20; gpu.sm_pct[os.getppid()] = 55", id="SMs"),
    ],
)
def test_foreign_process_on_gpu_makes_test_an_error(measured, body):
    """Fault 68, during the run: the pid and the user are named, and no baseline takes it."""
    result, error_text, run_file = measured(body)
    assert result.ret == 10
    assert "the GPU was contended: pid " in error_text
    assert "of GPU 0" in error_text
    assert run_file["measurements"][0]["runs"][0]["contended"].startswith("pid ")


def test_an_idle_context_of_a_monitor_is_no_competitor(measured):
    result, _, _ = measured("gpu.processes[os.getppid()] = 100 << 20")
    assert result.ret == 0


def test_hidden_process_ids_are_reported(measured):
    """The driver lists no process of this session, so foreign processes cannot be recognized. The summary says so."""
    result, _, run_file = measured("gpu.processes = {4_000_000: 70 << 30}")
    assert result.ret == 0
    assert run_file["measurements"][0]["runs"][0]["gpu_state"]["pids_visible"] is False
    result.stdout.fnmatch_lines(["*process ids are not this container's*"])


@pytest.mark.parametrize(("body", "line"), [
    ("gpu.processes = {}", "*the driver lists no process on the GPUs, ours neither*"),
    ("gpu.reasons = None", "*the driver does not say whether the GPUs were throttled*"),
])
def test_missing_driver_facts_are_reported(measured, body, line):
    result, _, _ = measured(body)
    assert result.ret == 0
    result.stdout.fnmatch_lines([line])


def test_gpu_memory_in_use_before_start_makes_test_an_error(measured, monkeypatch):
    """Faults 68 and 69: a foreign process, or a server whose memory never comes back."""
    monkeypatch.setenv("FAKE_USED", "30000")
    result, _, run_file = measured()
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*GPU 0 has 30,000 MiB in use, by a process that cannot be seen from here, after *"])
    assert (run_file["complete"], run_file["measurements"]) == (False, [])


@pytest.mark.parametrize(
    ("reasons", "name"), [(0x40, "hw_thermal_slowdown"), (0x84, "hw_power_brake_slowdown"), (0x20, "sw_thermal")]
)
def test_throttled_gpu_makes_test_an_error(measured, reasons, name):
    """Fault 70."""
    result, error_text, _ = measured(f"gpu.reasons = {reasons}; gpu.temperature_c = 91")
    assert result.ret == 10
    assert f"the GPU was throttled ({name}" in error_text
    assert "up to 91 °C" in error_text


def test_settings_are_part_of_the_fingerprint(measured):
    """Fault 71."""
    _, _, run_file = measured()
    conditions = run_file["measurements"][0]["conditions"]
    assert {name.removeprefix("gpu."): value for name, value in conditions.items() if name.startswith("gpu.")} == {
        "persistence": "on", "ecc": "on", "mig": "off", "power_limit_mw": "700000",
        "application_sm_clock_mhz": "1980", "application_memory_clock_mhz": "3201",
    }
    assert (conditions["driver"], conditions["cuda"]) == ("580.1", "13.0")
    assert conditions["host_env.VLLM_USE_FLASHINFER_SAMPLER"] == "unset"


def test_partitioned_gpu_makes_test_an_error(measured):
    """Fault 71."""
    result, error_text, _ = measured("gpu.mig = True")
    assert result.ret == 10
    assert "GPU 0 (NVIDIA H200) is partitioned (MIG)" in error_text


def test_power_limit_changed_between_runs_makes_test_an_error(measured):
    """Fault 71: somebody lowers the limit."""
    result, error_text, _ = measured(
        "after_next('nvmlShutdown', lambda: setattr(gpu, 'power_limit_mw', 400_000))", runs=2
    )
    assert result.ret == 10
    assert "power_limit_mw 700000 → 400000" in error_text


@pytest.mark.parametrize("body", ["fake.broken = {'nvmlInit'}", "fake.gpus.clear()"])
def test_failing_driver_removes_telemetry_but_keeps_run(measured, body):
    """Fault 72."""
    result, _, run_file = measured(body)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*the GPUs were not watched: *"])
    assert run_file["measurements"][0]["runs"][0]["gpu_state"]["problem"]


def test_hanging_driver_removes_telemetry_but_keeps_run(measured):
    """Fault 72: said once, and not asked again."""
    result, _, run_file = measured("fake.answering.clear()", runs=2)
    assert result.ret == 0
    assert result.stdout.str().count("did not answer") == 1
    for run in run_file["measurements"][0]["runs"]:
        assert "did not answer" in run["gpu_state"]["problem"]
        assert run["gpu"]["at_ns"] == []


def test_fields_that_a_driver_does_not_support_are_unknown(measured):
    result, _, run_file = measured("fake.unsupported = {'nvmlDeviceGetPowerUsage', 'nvmlDeviceGetProcessUtilization'}")
    assert result.ret == 0
    table = run_file["measurements"][0]["runs"][0]["gpu"]
    assert set(table["power_w"]) == {None}
    assert set(table["sm_clock_mhz"]) == {1980}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("fake.xids = [79]", "a GPU reported Xid 79"),
        ("gpu.lost = True", "a GPU fell off the bus"),
        ("after_next('nvmlDeviceGetTemperature', lambda: setattr(gpu, 'ecc_errors', 2))",
         "GPU 0 had 2 uncorrected memory errors"),
        ("after_next('nvmlDeviceGetTemperature', lambda: setattr(gpu, 'lost', True))", "a GPU fell off the bus"),
    ],
    ids=["Xid", "lost before", "ECC", "lost"],
)
def test_gpu_hardware_error_makes_test_an_error(measured, body, sentence):
    """Fault 73."""
    result, error_text, _ = measured(body)
    assert result.ret == 10
    assert sentence in error_text


def test_gpu_hidden_by_environment_does_not_count_for_gpus_marker(suite, measured, monkeypatch):
    """Fault 74: of two, one may be used."""
    monkeypatch.setenv("FAKE_GPUS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    result, _ = suite.run("@pytest.mark.h200\n@pytest.mark.gpus(2)\ndef test_x(): pass\n", "-rs")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*needs 2 GPUs; this machine has 1 × NVIDIA H200*"])


def test_unknown_gpu_model_skips_tests_of_other_kinds(suite, measured):
    """Fault 75: it must not pass for one that is known, nor for a CPU."""
    (suite.folder / "pynvml.py").write_text(FAKE + "gpu.name = 'NVIDIA L40'\n")
    result, _ = suite.run("@pytest.mark.l4\ndef test_x(): pass\n@pytest.mark.cpu\ndef test_y(): pass\n", "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*needs l4; this machine has 1 × NVIDIA L40*"])


def test_unknown_gpu_model_has_separate_baselines(suite, measured, monkeypatch):
    """Fault 75: without a baseline for this GPU model the message names the option that creates a baseline, even if a
    different unknown GPU model has a baseline."""
    monkeypatch.setenv("CI", "true")
    text = SUITE.replace("@pytest.mark.h200\n", "") + "    perf.compare_with_baseline(run)\n"
    for model in ("L40", "B300"):
        (suite.folder / "pynvml.py").write_text(f"{FAKE}gpu.name = 'NVIDIA {model}'\n")
        kind = f"other-gpu-nvidia-{model.lower()}"
        result, _ = suite.run(text.format(body="pass", runs=1, slos=""))
        assert result.ret == 1
        result.stdout.fnmatch_lines([
            f"*no baseline is stored for this test on {kind}. Create one with --update-baselines-new.*",
            "NO_BASELINE  test_x  baseline",
        ])
        suite.run(text.format(body="pass", runs=1, slos=""), "--update-baselines-new")
        assert (suite.folder / f"baselines/{kind}/it/test_x.json").exists()


@pytest.mark.parametrize(("power_mw", "counted_mw", "noted"), [
    (500_000, 500_000, False), (600_000, 500_000, True), (500_000, None, False),
], ids=["agreeing", "disagreeing", "power alone"])
def test_energy_is_judged_by_counter_and_checked_by_power(measured, monkeypatch, power_mw, counted_mw, noted):
    monkeypatch.setenv("STUB_ITL_S", "0.01")  # runs of a second: a counter that is read 10 ms late changes 1 %
    result, _, run_file = measured(f"gpu.power_mw, gpu.counted_mw = {power_mw}, {counted_mw}", "-rA", runs=2,
                                   slo="joules_per_token <= 1000 J")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*joules_per_token *≤ 1000 J/token*J/token*PASS*"])
    note = "the energy counter and the sampled power differ by "
    assert (note in result.stdout.str()) == noted
    for run in run_file["measurements"][0]["runs"]:
        metrics = run["metrics"]
        assert metrics["energy_j"] == pytest.approx(500 * metrics["duration_s"], rel=0.1)
        tokens = metrics["output_throughput"] * metrics["duration_s"]
        assert metrics["joules_per_token"] == pytest.approx(metrics["energy_j"] / tokens)


def test_energy_without_counter_and_power_is_not_seen(measured):
    result, error_text, run_file = measured("fake.unsupported.add('nvmlDeviceGetPowerUsage')", runs=2,
                                            slo="joules_per_token <= 1000 J")
    assert result.ret == 10
    assert "joules_per_token is unavailable in every run" in error_text
    result.stdout.fnmatch_lines(["*neither energy nor power of the GPUs: energy per token is not seen*"])
    assert run_file["measurements"][0]["runs"][0]["metrics"]["joules_per_token"] is None
