"""--resume: a session goes on in an earlier run folder and keeps the verdicts of that run."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.emulated
SUITE = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

LOAD = random_tokens(input=32, output=8, arrivals=closed(1), requests=6)
LIMITS = {"good": "error_rate == 0", "bad": "ttft_p50 <= 1us"}

@pytest.mark.parametrize("name", LIMITS)
def test_answers(perf, name):
    perf.check(perf.measure(vllm("llama-3.1-8b", max_model_len=4096), LOAD), LIMITS[name])
"""


def stored_runs():
    return {path.name: json.loads(path.read_text()) for path in Path(".llmperf/runs").glob("*/tests/*.json")}


def test_resumed_session_measures_only_undecided_tests_and_reports_all(run):
    result, _ = run(SUITE, "--emulate", "h200", "-k", "bad")
    assert result.ret == 1
    earlier_runs = stored_runs()
    result, junit = run(SUITE, "--emulate", "h200", "--resume", "newest")
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["llmperf FAIL: test_answers[[]bad]", "1 verdicts are of the resumed run"])
    after = stored_runs()
    assert len(after) == 2
    assert earlier_runs.items() <= after.items()  # nothing of it was measured again
    assert len(list(Path(".llmperf/runs").iterdir())) == 1 + Path(".llmperf/runs/.gitignore").exists()
    properties_by_test = [
        {node.get("name"): node.get("value") for node in case.iter("property")} for case in junit.iter("testcase")
    ]
    assert sorted(names["llmperf.verdict"] for names in properties_by_test) == ["FAIL", "PASS"]
    (resumed,) = [names for names in properties_by_test if "llmperf.resumed" in names]
    assert resumed["llmperf.verdict"] == "FAIL"
    assert Path(resumed["llmperf.run_file"]).name in earlier_runs


def test_resumed_verdict_keeps_stored_duration(run):
    run(SUITE, "--emulate", "h200", "-k", "bad")
    (path,) = Path(".llmperf/runs").glob("*/session.json")
    stored_durations_s = json.loads(path.read_text())["durations_s"]
    run(SUITE, "--emulate", "h200", "--resume", "newest")
    after = json.loads(path.read_text())["durations_s"]
    assert len(after) == 2
    assert stored_durations_s.items() <= after.items()


def test_test_that_was_interrupted_is_measured_again(run):
    run(SUITE, "--emulate", "h200")
    (path,) = Path(".llmperf/runs").glob("*/tests/*good*.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"complete": False}))
    result, _ = run(SUITE, "--emulate", "h200", "--resume", "newest")
    result.assert_outcomes(passed=1, failed=1)
    assert json.loads(path.read_text())["complete"] is True
    result.stdout.fnmatch_lines(["1 verdicts are of the resumed run"])


LOOSER = SUITE.replace("error_rate == 0", "error_rate <= 50%")


def test_verdict_of_other_inputs_is_not_taken_over(run, pytester, monkeypatch):
    """Collection alone shows it: a test whose verdict is taken over is a DecidedTest."""
    run(SUITE, "--emulate", "h200", "-k", "good")

    def line(*args, text=SUITE, emulated="h200"):
        pytester.makepyfile(test_it=f"from results import give\n\n{text}")
        result = pytester.runpytest_inprocess("--emulate", emulated, "--resume", "newest", "--collect-only", *args)
        (line,) = [line for line in result.outlines if "were measured again" in line] or [""]
        assert ("1 verdicts are of the resumed run" in result.outlines) is (not line)
        return line.rpartition("test_answers[good]: ")[2]

    assert line("-v", "-k", "good", "--junitxml=other.xml") == ""
    assert line(text=LOOSER) == "other code"
    assert line("--emulate-fault", "step_time=+500%") == "other options"
    assert line("--plant-flag", "vllm:enforce-eager") == "other options"
    assert line("--llmperf-extension-limit", "0") == "other options, settings"
    Path("conftest.py").write_text("import pytest\n")
    assert line() == "other code"
    Path("conftest.py").unlink()
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert line() == "other environment"
    monkeypatch.delenv("NCCL_ALGO")
    assert line() == ""
    (path,) = Path(".llmperf/runs").glob("*/tests/*.json")
    content = json.loads(path.read_text())
    del content["inputs"]
    path.write_text(json.dumps(content))
    assert line() == "the stored result names no inputs"


def test_inconclusive_test_that_is_judged_again_spends_further_error(run):
    suite = SUITE.replace("error_rate == 0", "error_rate <= 1%")
    run(suite, "--emulate", "h200", "-k", "good")
    (path,) = Path(".llmperf/runs").glob("*/tests/*.json")
    first = json.loads(path.read_text())
    for number in (2, 3):
        _, junit = run(suite, "--emulate", "h200", "-k", "good", "--resume", "newest")
        again = json.loads(path.read_text())
        assert [each["ended"] for each in again["earlier"]] == ["INCONCLUSIVE"] * (number - 1)
        assert again["earlier"][0]["checks"] == first["checks"]
        assert again["earlier"][0]["measurements"] == first["measurements"]
        runs = again["measurements"][0]["runs"]
        assert {each["execution"] for each in runs} == {number}
        assert {each["seed"] for each in runs}.isdisjoint(each["seed"] for each in first["measurements"][0]["runs"])
    (text,) = [node.get("value") for node in junit.iter("property") if node.get("name") == "llmperf.executions"]
    assert text.startswith("execution 1: INCONCLUSIVE, in an earlier command, none of its runs count; execution 2: ")
    needed = [each["checks"][0]["facts"].get("more_observations") for each in (first, again)]
    assert None in needed or needed[0] < needed[1]


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--resume", "newest"], "*--resume newest: no run is stored in*Drop --resume*"),
    (["--resume", "elsewhere"], "*--resume elsewhere: *no run is stored in*"),
    (["--resume", ".llmperf/runs/gone"], "*--resume .llmperf/runs/gone: *"),
])
def test_resume_without_usable_run_is_refused(run, arguments, complaint):
    result, _ = run(SUITE, "--emulate", "h200", *arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines([complaint])


def test_resume_of_other_hardware_is_refused(run):
    run(SUITE, "--emulate", "h200", "-k", "good")
    result, _ = run(SUITE, "--emulate", "l4", "--resume", "newest")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*its hardware is emulated h200, and this is emulated l4*Drop --resume*"])


SEARCH = """
from pytest_llmperf import poisson, random_tokens, vllm

CHAT = random_tokens(input=(200, 600), output=8, arrivals=poisson(60), requests=40)

def test_it(perf):
    found = perf.max_rate(vllm("llama-3.1-8b", max_model_len=4096), CHAT, slo="ttft_p50 <= 100ms", precision=0.2)
    perf.check(found, "max_rate >= 1/s")
"""


def test_interrupted_search_of_test_keeps_judged_rates(run):
    run(SEARCH, "--emulate", "h200")
    (path,) = Path(".llmperf/runs").glob("*/tests/*.json")
    content = json.loads(path.read_text())
    rates = [each for each in content["measurements"] if "tried_rate" in each["conditions"]]
    path.write_text(json.dumps(content | {"complete": False, "measurements": rates[:3], "checks": []}))
    result, _ = run(SEARCH, "--emulate", "h200", "--resume", "newest")
    assert result.ret == 0
    again = json.loads(path.read_text())["measurements"]
    assert len(again) == len(content["measurements"])
    for before in rates[:3]:
        (after,) = [each for each in again if each["workload"] == before["workload"]]
        assert after["runs"][0]["started_at"] == before["runs"][0]["started_at"]
        assert after["runs"][0]["requests"] == before["runs"][0]["requests"]


CLAIM = """
from pytest_llmperf import closed, random_tokens, vllm

LOAD = random_tokens(input=32, output=8, arrivals=closed(1), requests=6)

def test_small_batches_wait(perf):
    small = vllm("llama-3.1-8b", max_model_len=4096, max_num_seqs=1)
    perf.claim(small, small.with_flags(max_num_seqs=8), LOAD, "itl_p50(b) / itl_p50(a) <= 1.5")
    perf.compare_with_baseline(perf.measure(small, LOAD))
"""


@pytest.fixture
def interrupted_claim(run):
    """The run file of a claim that ended while its second side started; a function writes it."""
    run(CLAIM, "--emulate", "h200")
    (path,) = Path(".llmperf/runs").glob("*/tests/*.json")
    content = json.loads(path.read_text())
    first = next(each for each in content["measurements"] if each["side"])

    def write(**changed):
        path.write_text(json.dumps(content | {"complete": False, "checks": [], "claims": [],
                                              "measurements": [first | changed]}))
        return path, first

    return write


def starts_by_side(path):
    measurements = json.loads(path.read_text())["measurements"]
    return {each["side"]: {run["start_id"] for run in each["runs"]} for each in measurements if each["side"]}


def test_resumed_claim_keeps_the_runs_of_its_finished_side(run, interrupted_claim):
    path, first = interrupted_claim()
    result, _ = run(CLAIM, "--emulate", "h200", "--resume", "newest")
    assert json.loads(path.read_text())["complete"] is True, str(result.stdout)
    sides = {each["side"]: each for each in json.loads(path.read_text())["measurements"]}
    kept = sides[first["side"]]["runs"]
    assert [each["started_at"] for each in kept[:3]] == [each["started_at"] for each in first["runs"]]
    assert len(sides["a"]["runs"]) == len(sides["b"]["runs"])


@pytest.mark.parametrize("changed", [{"complete": False}, {"workload": "other requests"}])
def test_resumed_claim_measures_a_side_anew_that_is_not_the_finished_one(run, interrupted_claim, changed):
    path, first = interrupted_claim(**changed)
    run(CLAIM, "--emulate", "h200", "--resume", "newest")
    sides = {each["side"]: each for each in json.loads(path.read_text())["measurements"]}
    assert sides[first["side"]]["runs"][0]["started_at"] != first["runs"][0]["started_at"]


def test_workers_go_on_in_the_run_folder_of_earlier_workers(run):
    text = SUITE.replace("LIMITS = {", 'LIMITS = {"other": "error_rate == 0", ')
    run(text, "--emulate", "h200", "-n", "2", "-k", "bad or other")
    (path,) = Path(".llmperf/runs").glob("*/tests/*other*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"complete": False}))
    result, _ = run(text, "--emulate", "h200", "-n", "2", "--resume", "newest")
    result.assert_outcomes(passed=2, failed=1)
    files = [json.loads(path.read_text()) for path in Path(".llmperf/runs").glob("*/tests/*.json")]
    assert sorted(each["test"].partition("[")[2] for each in files) == ["bad]", "good]", "other]"]
    assert all(each["complete"] for each in files)
    assert len(list(Path(".llmperf/runs").glob("*/session.json"))) == 1
