"""Baselines through pytest, on the emulator: made, compared with, refused, and never changed by the way."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
from pytest_llmperf import by_kind, closed, random_tokens, vllm

CASES = by_kind(h200={"model": "llama-3.1-8b"}, l4={"model": "phi-4-mini"})

@CASES
def test_decode(case, perf):
    traffic = random_tokens(input=200, output=40, arrivals=closed(4), requests=24)
    run = perf.measure(vllm(case.model, max_model_len=LENGTH), traffic)
    perf.check(run, "error_rate == 0")
    perf.compare_with_baseline(run)
"""
STORED = "baselines/emulated-h200/it/test_decode.json"

pytestmark = pytest.mark.emulated


@pytest.fixture
def emulate(run, pytester, monkeypatch):
    monkeypatch.delenv("CI", raising=False)

    def emulate(*args, length=8192, text=SUITE):
        return run(text.replace("LENGTH", str(length)), "--emulate", "h200", "-k", "h200", *args)

    emulate.stored = lambda: json.loads(Path(pytester.path, STORED).read_text())["measurements"][""]
    emulate.path = Path(pytester.path, STORED)
    return emulate


def test_a_missing_baseline_is_no_pass(emulate, pytester):
    result, _ = emulate("-rs")
    assert result.ret == 11
    result.stdout.fnmatch_lines(["*Create one with --update-baselines-new.*"])
    command = result.outlines[result.outlines.index("next:") + 1]
    (folder,) = Path(pytester.path, ".llmperf/runs").iterdir()
    assert command == f"  llmperf baselines take .llmperf/runs/{folder.name} --new"
    assert not emulate.path.exists()
    made = pytester.run(sys.executable, "-m", "pytest_llmperf", *shlex.split(command)[1:])
    assert made.ret == 0
    assert emulate.path.exists()


def test_a_plan_is_shown_before_a_write_that_fails(emulate, pytester):
    log = Path(pytester.path, "baselines/.update")
    log.mkdir(parents=True)
    (log / "journal.new").symlink_to("/dev/full")  # no link is followed
    result, _ = emulate("--update-baselines-new", "--llmperf-missing-baseline", "skip")
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        "baselines: 1 created", f"  created * {STORED.partition('/')[2]} *",
        "baselines: nothing was updated: * Too many levels of symbolic links*Nothing was changed.",
    ])
    assert not emulate.path.exists()
    (folder,) = Path(pytester.path, ".llmperf/runs").iterdir()
    result = take(pytester, folder)
    assert result.ret == 2
    result.stdout.fnmatch_lines(["baselines: 1 created"])
    result.stderr.fnmatch_lines(["*Too many levels of symbolic links*"])


@pytest.mark.parametrize("how", ["ci", "option"])
def test_a_missing_baseline_fails_in_ci(emulate, monkeypatch, how):
    if how == "ci":
        monkeypatch.setenv("CI", "true")
    result, _ = emulate(*(["--llmperf-missing-baseline", "fail"] if how == "option" else []))
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*no baseline is stored for this test on emulated-h200*"])
    assert not emulate.path.exists()


def test_slower_engine_fails_against_stored_baseline(emulate):
    for seed in "123":
        result, _ = emulate("--update-baselines", "--emulate-seed", seed)
        assert result.ret == 0
    result.stdout.fnmatch_lines(["baselines: 1 changed", "*tpot_mean * 3 sessions"])
    assert len(emulate.stored()["sessions"]) == 3
    earlier_content = emulate.path.read_bytes()
    result, _ = emulate("--emulate-seed", "4")
    assert result.ret == 0
    result, junit = emulate("--emulate-seed", "5", "--emulate-fault", "step_time=+30%")  # gross
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*tpot_mean *FAIL*runs against 9 of 3 sessions*"])
    assert junit.find(".//failure") is not None
    result, _ = emulate("--emulate-seed", "6", "--emulate-fault", "step_time=-10%")
    assert result.ret == 0
    assert emulate.path.read_bytes() == earlier_content


def test_seeds_are_not_sent_again_if_cache_is_kept(emulate):
    text = SUITE.replace("traffic)", 'traffic, keep=("engine",))')
    emulate("--update-baselines", "--emulate-seed", "1", text=text)
    result, _ = emulate("--emulate-seed", "2", "--emulate-fault", "step_time=+10%", "-rs", text=text)
    assert result.ret == 11
    result.stdout.fnmatch_lines(["*itl_p50 *INCONCLUSIVE*3 runs against 3 of one session*"])


@pytest.mark.thorough
def test_update_with_equal_noise_seed_adds_no_session(emulate):
    for seed, sessions in (("1", 1), ("1", 1), ("2", 2), ("2", 2)):
        result, _ = emulate("--update-baselines", "--emulate-seed", seed)
        assert len(emulate.stored()["sessions"]) == sessions
    result.stdout.fnmatch_lines([
        "baselines: 1 kept", "*kept*has the same values; measure with a different --emulate-seed"])


def test_cause_of_invalid_runs_is_shown_once(emulate):
    text = SUITE.replace("error_rate == 0", "ttft_p50 <= 9s")
    emulate("--update-baselines", text=text)
    result, junit = emulate("--emulate-fault", "errors=5%", text=text)
    assert result.ret == 10
    rows = junit.find(".//error").text.splitlines()
    assert sum("requests failed" in row for row in rows) == 1


@pytest.mark.thorough
def test_a_failed_comparison_is_taken_in_only_with_a_reason(emulate):
    for seed in "123":
        emulate("--update-baselines", "--emulate-seed", seed)
    earlier_content = emulate.path.read_bytes()
    slower = ("--update-baselines", "--emulate-fault", "step_time=+40%")
    result, _ = emulate(*slower)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["baselines: 1 refused"])
    assert emulate.path.read_bytes() == earlier_content
    result, _ = emulate(*slower, "--llmperf-accept", "larger vocabulary")
    result.stdout.fnmatch_lines(["baselines: 1 changed"])
    assert emulate.stored()["sessions"][-1]["accepted"] == "larger vocabulary"


def test_other_flags_are_incomparable_and_named(emulate):
    emulate("--update-baselines-new")
    result, _ = emulate("-rs", length=4096)
    assert result.ret == 11
    result.stdout.fnmatch_lines([
        "next:", "  pytest 'test_it.py::test_decode[[]h200[]]' --emulate h200 --update-baselines --llmperf-accept *",
        "*engine.max_model_len: 8192 stored, 4096 now*"
        '*start the baseline anew with --update-baselines --llmperf-accept "REASON".*',
    ])
    result, _ = emulate("--llmperf-missing-baseline", "fail", length=4096)
    assert result.ret == 1


def measured_elsewhere(emulate, **fields):
    """Turn the stored session into a session of another host, whose build and conditions had these fields."""
    emulate("--update-baselines-new")
    document = json.loads(emulate.path.read_text())
    measurement = document["measurements"][""]
    measurement["fingerprint"] |= fields
    (session,) = measurement["sessions"]
    session["host"] = "0" * len(session["host"])
    emulate.path.write_text(json.dumps(document))


def test_upgraded_engine_on_new_host_is_compared_and_not_red_in_ci(emulate, monkeypatch):
    measured_elsewhere(emulate, **{"engine.version": "0.26.0", "engine.max_num_batched_tokens": "2048"})
    monkeypatch.setenv("CI", "true")
    result, _ = emulate()
    assert result.ret == 0
    crossed = ("vLLM 0.26.0 → 0.32.0+emulated; its defaults changed: max_num_batched_tokens 2048 → 8192; provisional: "
               "1 stored session of 1 other host with vLLM 0.26.0")
    assert f"1 compared across builds or hosts: {crossed}"[:79] in [line[:79] for line in result.outlines]
    monkeypatch.setenv("COLUMNS", "400")
    result, _ = emulate("--emulate-fault", "step_time=+40%")
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        "*baseline*", "*first suspect: changed defaults, max_num_batched_tokens 2048 → 8192*",
        f"1 compared across builds or hosts: {crossed}",
    ])


def test_same_build_makes_changed_version_incomparable(emulate, pytester):
    measured_elsewhere(emulate, **{"engine.version": "0.26.0"})
    Path(pytester.path, "llmperf.toml").write_text('same_build = ["engine.version"]\n')
    result, _ = emulate("-rs", "--llmperf-missing-baseline", "fail")
    assert result.ret == 1
    result.stdout.fnmatch_lines(['*engine.version: 0.26.0 stored, 0.32.0+emulated now*take "engine.version" out of *'])


@pytest.mark.parametrize(("setting", "text"), [
    ('same_build = ["gpu"]', "*same_build names gpu, which is no field of the build.*"),
    ('compare_across = ["driver"]', "*compare_across names driver, which belongs to the build under test*"),
])
def test_setting_with_field_of_other_class_is_refused_before_any_test(emulate, pytester, setting, text):
    Path(pytester.path, "llmperf.toml").write_text(setting)
    result, _ = emulate()
    assert result.ret == 4
    result.stderr.fnmatch_lines([text])


def test_update_of_missing_baselines_keeps_existing_file(emulate):
    emulate("--update-baselines-new")
    earlier_content = emulate.path.read_bytes()
    result, _ = emulate("--update-baselines-new", "--emulate-seed", "7")
    result.stdout.fnmatch_lines(["baselines: 1 kept"])
    assert emulate.path.read_bytes() == earlier_content


def test_created_baseline_is_followed_by_advice_to_commit(emulate):
    result, _ = emulate("--update-baselines")
    result.stdout.fnmatch_lines(["next:", "  git add baselines"])
    result.stdout.no_fnmatch_line("*--update-baselines-new*")


def test_xdist_controller_writes_baselines_of_all_workers(emulate):
    text = SUITE + SUITE[SUITE.index("@CASES"):].replace("test_decode", "test_again").replace("input=200", "input=300")
    result, _ = emulate("--update-baselines", "-n", "2", text=text)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["baselines: 2 created"])
    assert {path.name for path in emulate.path.parent.iterdir()} == {"test_decode.json", "test_again.json"}


def test_corrupt_baseline_makes_compared_test_an_error(emulate):
    emulate("--update-baselines-new")
    emulate.path.write_text(emulate.path.read_text()[:300])
    result, junit = emulate()
    assert result.ret == 10
    assert "test_decode.json" in junit.find(".//error").text


@pytest.mark.parametrize("value", ["1e-308", pytest.param("1e308", marks=pytest.mark.thorough)])
def test_extreme_stored_value_is_an_error_and_no_regression(emulate, value):
    emulate("--update-baselines-new")
    stored = json.loads(emulate.path.read_text())
    for measurement in stored["measurements"].values():
        measurement["metrics"] = {metric: [[float(value)] * len(row) for row in rows]
                                  for metric, rows in measurement["metrics"].items()}
    emulate.path.write_text(json.dumps(stored))
    result, junit = emulate()
    assert result.ret == 10
    assert "is no measured value" in junit.find(".//error").text


@pytest.mark.parametrize("broken", [
    pytest.param("<<<<<<< HEAD\n", id="conflict", marks=pytest.mark.thorough), pytest.param(None, id="of-another-test"),
])
def test_broken_baseline_does_not_affect_test_without_comparison(emulate, broken):
    """Nor does one of a test with the same file and function in another folder."""
    emulate("--update-baselines")
    stored = json.loads(emulate.path.read_text())
    emulate.path.write_text(broken or json.dumps(stored | {"test": "elsewhere/test_it.py::test_decode"}))
    result, _ = emulate("-p", "no:cacheprovider", text=SUITE.replace("    perf.compare_with_baseline(run)\n", ""))
    result.assert_outcomes(passed=1)


def test_orphaned_baseline_is_removed_only_after_complete_collection(emulate, pytester):
    emulate("--update-baselines-new")
    gone = "def test_nothing(): pass"
    result, _ = emulate("--update-baselines", "-k", "nothing", text=gone)
    assert emulate.path.exists()
    pytester.makepyfile(test_it=SUITE.replace("LENGTH", "8192").replace("test_decode", "test_other"))
    result = pytester.runpytest_subprocess("--emulate", "h200", "--update-baselines")
    result.stdout.fnmatch_lines(["*orphaned  emulated-h200/it/test_decode.json*"])
    assert not emulate.path.exists()


def test_changed_code_is_refused_as_dirty(emulate, pytester):
    who = ["-c", "user.email=a@b", "-c", "user.name=a"]
    for command in (["init", "-q"], ["add", "results.py"], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=pytester.path, check=True)
    result, _ = emulate("--update-baselines-new")
    assert result.ret == 0
    assert len(emulate.stored()["sessions"][0]["commit"]) == 12
    Path(pytester.path, "results.py").write_text("changed = 1\ndef give(*_): pass\n")
    result = pytester.runpytest_subprocess("--emulate", "h200", "-k", "h200", "--update-baselines")
    result.stdout.fnmatch_lines(["baselines: 1 refused", "*the working tree differs from commit*"])


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--update-baselines", "--update-baselines-new"), "*choose one*"),
        (("--llmperf-accept", "why"), "*needs --update-baselines*"),
        (("--update-baselines", "--llmperf-accept", " "), "*say why*"),
    ],
)
def test_contradictory_or_incomplete_baseline_options_are_refused(emulate, args, complaint):
    result, _ = emulate(*args)
    assert result.ret == 4
    result.stderr.fnmatch_lines([complaint])


def take(pytester, *args):
    return pytester.run(sys.executable, "-m", "pytest_llmperf", "baselines", "take", *map(str, args))


def test_taking_run_folders_stores_same_baseline_as_direct_update(emulate, pytester):
    """Two sessions measured without updating; what is stored is what --update-baselines stores, but for the session."""
    emulate("--emulate-seed", "1")
    emulate("--emulate-seed", "2", "-n", "2")
    folders = sorted(Path(pytester.path, ".llmperf/runs").iterdir())
    assert all((folder / "session.json").exists() for folder in folders)
    result = take(pytester, "--dry-run", *folders)
    result.stdout.fnmatch_lines(
        ["session * measured on host * at commit *", "baselines: 1 created", "Nothing was written*"]
    )
    assert not emulate.path.exists()
    result = take(pytester, *folders)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["baselines: 1 created", "baselines: 1 changed", "*2 sessions*"])
    taken = emulate.stored()
    assert [session["id"] in folder.name for session, folder in zip(taken["sessions"], folders, strict=True)] == [
        True,
        True,
    ]
    emulate.path.unlink()
    for seed in "12":
        emulate("--update-baselines", "--emulate-seed", seed)
    updated = emulate.stored()
    assert updated["metrics"] == taken["metrics"]
    assert updated["fingerprint"] == taken["fingerprint"]


def test_taking_same_run_folder_twice_keeps_baseline(emulate, pytester):
    emulate("--update-baselines-new")
    earlier_content = emulate.path.read_bytes()
    (folder,) = Path(pytester.path, ".llmperf/runs").iterdir()
    result = take(pytester, folder)
    result.stdout.fnmatch_lines(["baselines: 1 kept", "*stored already*"])
    assert emulate.path.read_bytes() == earlier_content


def test_refused_session_is_taken_with_accept_reason(emulate, pytester):
    for seed in "123":
        emulate("--update-baselines", "--emulate-seed", seed)
    earlier_content = emulate.path.read_bytes()
    earlier_folders = set(Path(pytester.path, ".llmperf/runs").iterdir())
    emulate("--emulate-fault", "step_time=+30%")
    (slower,) = set(Path(pytester.path, ".llmperf/runs").iterdir()) - earlier_folders
    result = take(pytester, slower)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["baselines: 1 refused", "*FAIL*"])
    assert emulate.path.read_bytes() == earlier_content
    assert take(pytester, slower, "--new").ret == 0
    assert emulate.path.read_bytes() == earlier_content
    assert take(pytester, slower, "--accept", "larger vocabulary").ret == 0
    assert emulate.stored()["sessions"][-1]["accepted"] == "larger vocabulary"


def test_update_from_folder_without_runs_is_refused(pytester):
    result = take(pytester, "nowhere")
    assert result.ret == 2
    result.stderr.fnmatch_lines(["llmperf baselines: nowhere: no run is stored in *. Run pytest first."])


def test_a_young_baseline_grows_although_comparisons_stay_open(emulate):
    """With an sd of several percent between runs a single session is inconclusive, and the next session is stored."""
    noisy = ("--emulate-noise", "session=2%,run=3%,step=1%")
    for seed in "12":
        result, _ = emulate("--update-baselines", *noisy, "--emulate-seed", seed)
    assert result.ret == 11
    result.stdout.fnmatch_lines(["baselines: 1 changed", "*INCONCLUSIVE comparison is no obstacle: fewer than 5*"])
    assert len(emulate.stored()["sessions"]) == 2


@pytest.mark.thorough
def test_pass_shows_smallest_detectable_change(emulate, pytester, stored_checks):
    for seed in "123":
        emulate("--update-baselines", "--emulate-seed", seed)
    result, junit = emulate("--emulate-seed", "4")
    assert result.ret == 0
    pattern = r"PASS +test_decode\[h200\] +[\d.]+ → [\d.]+ ms, [+-][\d.]+ %  baseline itl_p50 \(≤ \+5.0 %"
    result.stdout.re_match_lines([pattern])
    run_file = sorted(Path(pytester.path).glob(".llmperf/runs/*/tests/*.json"))[-1]
    basis = {check["metric"]: check["n"] for check in json.loads(run_file.read_text())["checks"]}
    assert "smallest detectable change +" in basis["tpot_mean"]
    checks = [check for case in junit.iter("testcase") for check in stored_checks(case)]
    (tpot,) = [check for check in checks if check["subject"] == "baseline tpot_mean"]
    assert 0.1 < tpot["facts"]["smallest_detectable"] < 0.4  # one test with three sessions tells little of their spread


def test_update_of_missing_baselines_keeps_incomparable_baseline(emulate):
    emulate("--update-baselines-new")
    earlier_content = emulate.path.read_bytes()
    result, _ = emulate("--update-baselines-new", "-rs", length=4096)
    assert result.ret == 11
    result.stdout.fnmatch_lines(["*engine.max_model_len: 8192 stored, 4096 now*"])
    result, _ = emulate("--update-baselines-new", "--llmperf-missing-baseline", "fail", length=4096)
    assert result.ret == 1
    assert emulate.path.read_bytes() == earlier_content


@pytest.mark.parametrize("hidden_by", [
    "folder", *(pytest.param(how, marks=pytest.mark.thorough) for how in ("ignore", "lf", "importorskip")),
])
def test_update_with_hidden_test_keeps_baseline(emulate, pytester, monkeypatch, hidden_by):
    pytester.makeini("[pytest]")
    emulate("--update-baselines-new")
    other = SUITE.replace("LENGTH", "8192").replace("test_decode", "test_other")
    folder = pytester.mkdir("other")
    (folder / "test_other.py").write_text(other.replace("error_rate == 0", "ttft_p50 <= 1ms"))
    emulated = [sys.executable, "-m", "pytest", "--emulate", "h200"]
    if hidden_by == "folder":
        monkeypatch.chdir(folder)
    if hidden_by == "lf":
        assert pytester.run(*emulated, "other").ret == 1  # from now on the last one that failed
    if hidden_by == "importorskip":
        pytester.makepyfile(test_it=f"import pytest\npytest.importorskip('no_such_module')\n{SUITE}")
    hiding = {"ignore": ["--ignore=test_it.py"], "lf": ["--lf"]}.get(hidden_by, [])
    result = pytester.run(*emulated, ".", *hiding, "--update-baselines", "--llmperf-accept", "a new driver")
    result.stdout.fnmatch_lines(["baselines: 1 created*"])
    assert emulate.path.exists()


def test_margin_of_uncompared_metric_is_refused(emulate):
    given = 'compare_with_baseline(run, margins={"itl_p99": 0.2})'
    result, _ = emulate(text=SUITE.replace("compare_with_baseline(run)", given))
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*the comparison judges itl_p50, tpot_mean, output_throughput*'itl_p99'*"])
