"""A skip hides no FAIL, one test's mistake is no crash of the session, and a note reaches its reader."""

import pytest


@pytest.mark.parametrize(
    ("verdict", "outcome", "code"),
    [("FAIL", {"failed": 1}, 1), ("ERROR", {"errors": 1}, 10), ("PASS", {"skipped": 1}, 0)],
)
def test_a_skip_does_not_hide_what_was_found_before_it(run, verdict, outcome, code):
    result, _ = run(f"import pytest\ndef test_it(perf):\n    give(perf, {verdict!r})\n    pytest.skip('the rest')\n")
    result.assert_outcomes(**outcome)
    assert result.ret == code


def test_a_note_on_an_error_is_shown(run):
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


def test_an_engine_function_that_fails_fails_its_own_test(pytester):
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


def test_a_number_of_gpus_is_a_number(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.cpu\n@pytest.mark.gpus\ndef test_x(): pass\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-m", "cpu")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*@pytest.mark.gpus(2)*"])


def test_an_expression_that_cannot_be_read_is_pytests_usage_error(pytester):
    pytester.makepyfile("def test_x(): pass\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-m", "h200 and")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*Wrong expression passed to '-m'*"])
