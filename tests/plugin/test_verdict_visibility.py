"""A skip hides no FAIL, one test's mistake is no crash of the session, and a note reaches its reader."""

import json

import pytest


@pytest.mark.parametrize(
    ("verdict", "outcome", "code"),
    [("FAIL", {"failed": 1}, 1), ("ERROR", {"errors": 1}, 10), ("PASS", {"skipped": 1}, 0)],
)
def test_skip_after_check_does_not_hide_verdict(run, verdict, outcome, code):
    result, _ = run(f"import pytest\ndef test_it(perf):\n    give(perf, {verdict!r})\n    pytest.skip('the rest')\n")
    result.assert_outcomes(**outcome)
    assert result.ret == code


def test_note_of_error_is_shown(run):
    text = """
from pytest_llmperf.errors import ExitedEarly

def test_it(perf):
    error = ExitedEarly("exit code 2")
    error.add_note("still alive after SIGKILL: python (pid 7)")
    raise error
"""
    result, _ = run(text)
    result.stdout.fnmatch_lines(["llmperf ERROR: exit code 2", "still alive after SIGKILL: python (pid 7)"])
    assert result.ret == 10


def test_failing_engine_function_fails_only_that_test(pytester):
    pytester.makepyfile(
        """
        import pytest
        from pytest_llmperf import vllm

        @pytest.mark.engine(lambda case: vllm(case.model))
        def test_without_a_case(engine): pass

        def test_beside_it(): pass
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1, errors=1)


def test_gpus_marker_without_number_is_refused(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.cpu\n@pytest.mark.gpus\ndef test_x(): pass\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-m", "cpu")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*@pytest.mark.gpus(2)*"])


def test_an_expression_that_cannot_be_read_is_pytests_usage_error(pytester):
    pytester.makepyfile("def test_x(): pass\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-m", "h200 and")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*Wrong expression passed to '-m'*"])


@pytest.mark.parametrize(("late", "outcome", "code", "verdict"), [
    ("FAIL", {"passed": 1, "errors": 1}, 1, "FAIL"), ("INCONCLUSIVE", {"passed": 1, "skipped": 1}, 0, "INCONCLUSIVE"),
    ("PASS", {"passed": 1}, 0, "PASS"),
])
def test_check_in_teardown_is_included_in_verdict(run, late, outcome, code, verdict):
    text = f"""
import pytest

@pytest.fixture
def always(perf):
    yield
    give(perf, {late!r})

def test_it(perf, always): give(perf, "PASS")
"""
    result, junit = run(text)
    result.assert_outcomes(**outcome)
    assert result.ret in (code, 11 if late == "INCONCLUSIVE" else code)
    properties = [(node.get("name"), node.get("value")) for node in junit.iter("property")]
    assert dict(properties)["llmperf.verdict"] == verdict
    assert len([name for name, _ in properties if name == "llmperf.test"]) == 1


@pytest.mark.parametrize("where", ["setup", "teardown"])
def test_a_server_that_dies_in_a_fixture_is_no_regression(run, where):
    dies = 'raise ServerDied("The server died: signal 9.")'
    text = f"""
import pytest
from pytest_llmperf.errors import ServerDied

@pytest.fixture
def measured(perf):
    {dies if where == "setup" else "yield"}
    {dies if where == "teardown" else "yield"}

def test_it(measured, perf): give(perf, "PASS")
"""
    result, _ = run(text)
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*llmperf ERROR: The server died: signal 9.", "ERROR  test_it*"])
    assert "Traceback" not in result.stdout.str()


def test_a_file_that_cannot_be_collected_is_no_error_of_a_measurement(run, pytester):
    pytester.makepyfile(test_broken="import nothing_of_that_name")
    result, _ = run("def test_it(perf): give(perf, 'ERROR')", "--continue-on-collection-errors")
    assert result.ret == 1


def test_skip_in_engine_function_is_limited_to_that_test(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.engine(lambda case: pytest.skip("none here"))
        def test_none(engine): pass

        def test_beside_it(): pass
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1, skipped=1)


@pytest.mark.parametrize(("marker", "complaint"), [
    ('engine(vllm("a"), vllm("b"))', "*takes one engine: write a pytest.param for each*"),
    ('engine(vllm("a"), frehs=True)', "*has no keyword frehs*Did you mean fresh?*"),
])
def test_a_wrong_marker_of_a_parameter_is_refused(pytester, marker, complaint):
    pytester.makepyfile(
        f"""
        import pytest
        from pytest_llmperf import vllm

        @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.{marker})])
        def test_x(engine, n): pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([complaint])


@pytest.mark.parametrize("fixtures", ["engine, perf", "perf, engine"])
def test_server_start_failure_is_stored_in_run_folder(pytester, fixtures):
    pytester.makepyfile(
        f"""
        import pytest
        from pytest_llmperf import vllm

        @pytest.mark.engine(vllm("tiny"))
        def test_x({fixtures}): pass
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--llmperf-engine=vllm=/nowhere")
    assert result.ret == 10
    (run_file,) = pytester.path.glob(".llmperf/runs/*/tests/*.json")
    assert "/nowhere" in json.loads(run_file.read_text())["error"]


@pytest.mark.parametrize("option", ["-p no:logging", "-p no:capture"])
def test_disabled_pytest_plugin_does_not_prevent_measurement(run, option):
    """The plugin only reads the options of pytest's own plugins, and a disabled plugin has no options."""
    text = """
from pytest_llmperf.model.status import Note

def test_it(perf):
    perf._execution.session.notify(Note("a word to somebody"))
    give(perf, "PASS")
"""
    result, _ = run(text, *option.split())
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*a word to somebody"])


def test_workers_that_cannot_be_started_are_no_reason_to_wait(pytester):
    pytester.makepyfile("def test_nothing(): pass\n")
    options = ["--tx", "popen", "--tx", "popen//python=/nonexistent", "--dist", "load", "-p", "no:cacheprovider"]
    assert pytester.runpytest_subprocess(*options, timeout=60).ret != 0


def test_copies_of_a_test_are_asked_for_once(run):
    result, _ = run("def test_it(perf): give(perf, 'NO_BASELINE')", "--count=2", "--llmperf-missing-baseline=skip")
    result.stdout.fnmatch_lines(["next:", "  pytest test_it.py::test_it --update-baselines-new"])


def test_a_secret_in_an_engines_command_is_not_repeated(run):
    command = "--llmperf-engine=vllm=dockr run -e HF_TOKEN=hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345 img"
    text = """
import pytest
from pytest_llmperf import vllm

@pytest.mark.engine(vllm("tiny"))
def test_it(engine): pass

def test_open(perf): give(perf, "INCONCLUSIVE")
"""
    result, junit = run(text, command)
    assert "hf_aBcDeF" not in result.stdout.str() + result.stderr.str()
    (error,) = junit.iter("error")
    assert "hf_aBcDeF" not in error.text
    assert "neither a folder, an interpreter nor a command" in error.text
