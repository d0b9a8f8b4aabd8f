"""`@pytest.mark.engine` and `by_kind`: parametrisation, order, and what is refused."""

from dataclasses import dataclass

import pytest

from pytest_llmperf import by_kind
from pytest_llmperf.errors import SpecError


@dataclass
class Row:
    rate: float = 8


def test_one_row_per_kind_makes_one_item_with_that_marker(pytester):
    pytester.makepyfile(
        """
        from pytest_llmperf import by_kind

        @by_kind(cpu={"model": "tiny"}, h200={"model": "llama-3.1-8b"})
        def test_x(case): assert case.model == "tiny" and case.kind == "cpu"
        """
    )
    result = pytester.runpytest_subprocess("-m", "cpu", "-v")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["*::test_x?cpu?*PASSED*"])


def test_dataclass_row_keeps_types_and_defaults_of_fields(pytester):
    pytester.makepyfile(
        """
        from dataclasses import dataclass
        import pytest
        from pytest_llmperf import by_kind, vllm

        @dataclass(frozen=True)
        class Case:
            model: str = "llama-3.1-8b"
            rate: float = 8

        @by_kind(cpu=Case("tiny", rate=1), h200=Case())
        @pytest.mark.engine(lambda case: vllm(case.model))
        def test_x(case, request): assert case == Case("tiny", 1.0)
        """
    )
    pytester.runpytest_subprocess("-m", "cpu").assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize(("options", "outcome"), [(("--emulate", "h200"), "skipped"), ((), "passed")],
                         ids=["emulated", "real"])
def test_emulated_session_skips_not_emulated_test_and_gives_reason(pytester, options, outcome):
    pytester.makepyfile(
        "import pytest\n@pytest.mark.not_emulated('an emulated GPU draws no power')\ndef test_x(): pass\n"
    )
    result = pytester.runpytest_subprocess(*options, "-rs")
    result.assert_outcomes(**{outcome: 1})
    if outcome == "skipped":
        result.stdout.fnmatch_lines(["SKIPPED*: an emulated GPU draws no power"])


def test_a_row_for_an_unknown_kind_is_refused(pytester):
    pytester.makepyfile("from pytest_llmperf import by_kind\n@by_kind(b300={})\ndef test_x(case): pass\n")
    result = pytester.runpytest_subprocess()
    result.stdout.fnmatch_lines(["*b300 is no hardware kind. Write a known one: l4, a100, h100, h200, *mi300x, cpu*"])


@pytest.mark.parametrize("row", [None, "tiny", ["tiny"], {1: 2}, {"kind": "tiny"}, Row], ids=repr)
def test_malformed_row_of_by_kind_is_refused(row):
    with pytest.raises(SpecError, match=r"by_kind\(cpu=.*: write the values of `case`"):
        by_kind(cpu=row)


@pytest.mark.parametrize(
    ("marker", "complaint"),
    [
        ("engine(vllm('tiny'), max_num_seqs=4)", "has no keyword max_num_seqs*vllm(MODEL, max_num_seqs=…)"),
        ("engine(vllm('tiny'), fresch=True)", "has no keyword fresch*Did you mean fresh?"),
        ("engine()", "names no engine"),
        ("engine('vllm')", "engine('vllm'): an engine is a spec, vllm(MODEL), or a function"),
        ("engine(lambda case: 3)", "@pytest.mark.engine gives 3, which is no engine: write"),
        ("gpus('2')\n@pytest.mark.h200", "write the number of GPUs as @pytest.mark.gpus(2)"),
        ("not_emulated", "write the reason as @pytest.mark.not_emulated("),
    ],
)
def test_malformed_engine_marker_is_refused_with_correct_form(pytester, marker, complaint):
    pytester.makepyfile(
        f"import pytest\nfrom pytest_llmperf import vllm\n@pytest.mark.{marker}\ndef test_x(engine): pass\n"
    )
    result = pytester.runpytest_subprocess("--emulate", "h200")
    result.stdout.fnmatch_lines([f"*{complaint}*".replace("[", "?")])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_llmperf/plugin/*")


def test_engine_fixture_without_marker_is_an_error_with_correct_form(pytester):
    pytester.makepyfile("def test_x(engine): pass\n")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*@pytest.mark.engine(vllm(*"])


def test_tests_of_equal_specs_run_consecutively_and_fresh_tests_last(pytester):
    pytester.makepyfile(
        """
        import pytest
        from pytest_llmperf import vllm

        one, two = vllm("tiny", max_num_seqs=1), vllm("tiny", max_num_seqs=2)

        @pytest.mark.engine(one, fresh=True)
        def test_a(engine): pass

        @pytest.mark.engine(two)
        def test_b(engine): pass

        def test_c(): pass

        @pytest.mark.engine(vllm("tiny", max_num_seqs=1))
        def test_d(engine): pass

        @pytest.mark.engine(one, two, ids=["one", "two"])
        def test_e(engine): pass
        """
    )
    result = pytester.runpytest_subprocess("--collect-only", "-q")
    order = [line.split("::")[1] for line in result.outlines if "::" in line]
    assert order == ["test_d", "test_e[one]", "test_a", "test_b", "test_e[two]", "test_c"]


def test_a_spec_may_depend_on_the_case(pytester):
    pytester.makepyfile(
        """
        import pytest
        from pytest_llmperf import by_kind, vllm
        from pytest_llmperf.plugin.fixtures import spec_of

        @by_kind(cpu={"model": "tiny"})
        @pytest.mark.engine(lambda case: vllm(case.model, max_num_seqs=3))
        def test_x(request, case):
            assert str(spec_of(request.node)) == "vllm('tiny', max_num_seqs=3)"
        """
    )
    pytester.runpytest_subprocess("-m", "cpu").assert_outcomes(passed=1)


FRESH = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

@pytest.mark.h200
def test_fresh(perf):
    prompts = random_tokens(input=8, output=4, arrivals=closed(1), requests=4)
    conditions = perf.measure(vllm("tiny"), prompts, runs=1, fresh=True).conditions
    assert conditions["treatment"] == "fresh start"
    assert not [name for name in conditions if name.startswith(("host_env.", "cuda", "cpu"))]

@pytest.mark.h200
@pytest.mark.engine(vllm("tiny"), fresh=True)
def test_fresh_by_its_marker(engine, perf):
    prompts = random_tokens(input=8, output=4, arrivals=closed(1), requests=4)
    assert perf.measure(engine, prompts, runs=1).conditions["treatment"] == "fresh start"

@pytest.mark.h200
@pytest.mark.engine(vllm("tiny"))
def test_shared(engine, perf):
    prompts = random_tokens(input=8, output=4, arrivals=closed(1), requests=4)
    assert "treatment" not in perf.measure(engine, prompts, runs=1).conditions
"""


@pytest.mark.emulated
def test_fresh_start_is_a_condition_and_host_facts_are_not_when_emulated(run):
    result, _ = run(FRESH, "--emulate", "h200")
    result.assert_outcomes(passed=3)


STARTS = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

@pytest.mark.h200
def test_starts(perf):
    prompts = random_tokens(input=8, output=4, arrivals=closed(1), requests=4)
    run = perf.measure(vllm("tiny"), prompts, runs=2, starts=3)
    assert [(one.start_id, one.seed) for one in run.runs] == [(1, 0), (1, 1), (2, 2), (2, 3), (3, 4), (3, 5)]
    assert run.complete
    perf.check(run, "ttft_p50 <= 10s", "error_rate == 0")
"""


@pytest.mark.emulated
def test_measurement_on_several_starts_reports_runs_and_starts(run, stored_checks):
    result, junit = run(STARTS, "--emulate", "h200")
    result.assert_outcomes(passed=1)
    assert "6 runs on 3 server starts" in str([stored_checks(case) for case in junit.iter("testcase")])


TWO_BUILDS = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

@pytest.mark.h200
def test_new_against_old(perf):
    new = vllm("llama-3.1-8b", max_model_len=8192)
    traffic = random_tokens(input=200, output=20, arrivals=closed(4), requests=24)
    perf.claim(new, new.with_installation("old"), traffic, "tpot_mean(a) / tpot_mean(b) <= 1.2")
    assert [one.conditions.get("installation") for one in perf.measurements] == [None, "old"]
    assert len({one.runs[0].start_id for one in perf.measurements}) == 2
"""


@pytest.mark.emulated
def test_two_builds_are_two_servers_and_a_condition(run):
    result, _ = run(TWO_BUILDS, "--emulate", "h200")
    result.assert_outcomes(passed=1)
