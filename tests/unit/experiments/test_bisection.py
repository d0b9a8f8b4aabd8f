"""The search among builds: verified ends, skipped builds, resumption, and what is printed at the end."""

import json
import random
from dataclasses import dataclass, field, replace

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.errors import UsageError
from pytest_llmperf.experiments import bisection
from pytest_llmperf.experiments.bisection import STATE, Bisection, measured_tests
from pytest_llmperf.experiments.builds import BuildFailed
from pytest_llmperf.results.check import Stated
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.results.writer import write_test

METRIC = "itl_p50"
CONDITIONS = {"hardware": "h200"}


@dataclass
class Machine:
    """Builds with known speeds. The options of a session name the build, and the build decides the measured speed."""

    slow_from: int
    builds: int = 16
    broken: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    change: float = 0.03
    first: int = 0
    asked: list[str] = field(default_factory=list)
    noise: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def names(self):
        return tuple(f"b{number + self.first}" for number in range(self.builds))

    def options(self, build, _notify):
        if build in self.broken:
            raise BuildFailed(f"the build command failed (exit code 1): no compiler. Output: {build}.log")
        return [f"--llmperf-engine=vllm={build}"]

    def described(self, build):
        return self.names[build]

    def session(self, options, folder):
        build = int(options[1].rpartition("=")[2])
        self.asked.append(options)
        if build in self.silent:
            raise UsageError("pytest measured nothing (exit code 1). Correct what it reports: the server did not start")
        slower = self.change * (build >= self.slow_from)
        sides = [self.measured(1 + slower), self.measured(1.0, installation="reference")]
        verdict = Verdict.FAIL if slower > 0 else Verdict.PASS
        cause = Stated("slower") if slower > 0 else None
        return [TestResult("t.py::test", True, None, (self.measured(1.0), *sides),
                           (CheckResult(f"reference {METRIC}", verdict, METRIC, cause=cause),))]

    def measured(self, factor, **conditions):
        runs = tuple(Run.of_values(seed, 1, {METRIC: 5 * factor * self.noise.gauss(1, 0.002)}) for seed in range(3))
        return Measurement("vllm('m')", "w", CONDITIONS | conditions, runs)


@pytest.fixture
def search(tmp_path):
    """Search on a machine; gives the finding and the lines of progress."""

    def search(machine):
        lines = []
        search = Bisection("t.py::test", machine, ["-m", "h200"], tmp_path / "state", lines.append, machine.session)
        return search.run(), lines

    return search


@pytest.mark.parametrize("place", [1, 7, 15])
def test_culprit_is_named_with_size_range_and_minutes(search, place):
    found, _ = search(Machine(place))
    assert found.found
    lines = found.lines()
    assert lines[0].startswith(f"culprit: b{place} (")
    assert lines[1].startswith("itl_p50 +")
    assert "range: b0 … b15, 16 builds" in lines[2]


def test_ends_are_compared_to_a_verdict_and_other_builds_in_three_pairs(search):
    machine = Machine(7)
    search(machine)
    first, *others = machine.asked
    assert first[1].endswith("=15")
    assert not any("extension-limit" in option for option in first)
    assert all("--llmperf-extension-limit=0" in options for options in others)
    assert all(options[-2:] == ["-m", "h200"] for options in machine.asked)


def test_equal_ends_name_no_culprit_after_one_comparison(search):
    machine = Machine(99)
    found, _ = search(machine)
    assert not found.found
    assert found.lines()[0].startswith("no culprit: b15 is not proven to be worse than b0: itl_p50 ")
    assert len(machine.asked) == 1


def test_build_that_cannot_be_made_is_skipped_with_reason_and_output(search):
    found, lines = search(Machine(7, broken=(8,)))
    assert found.lines()[0].startswith("culprit: b7 ")
    assert any("skipped: b8: the build command failed (exit code 1): no compiler. Output: 8.log" in line
               for line in found.lines())
    assert any("nothing was measured" in line for line in lines)


def test_server_that_does_not_start_is_tried_twice_and_leaves_two_possible_culprits(search):
    machine = Machine(8, silent=(7,))
    found, _ = search(machine)
    assert not found.found
    assert found.lines()[0].startswith("culprit is one of: b7 or b8 (")
    assert sum(options[1].endswith("=7") for options in machine.asked) == 2


@pytest.mark.parametrize("machine", [Machine(7, broken=(15,)), Machine(7, silent=(15,))], ids=["build", "start"])
def test_end_that_cannot_be_measured_ends_the_search_with_a_sentence(search, machine):
    with pytest.raises(UsageError, match=r"The ends b0 and b15 cannot be compared: .*Name ends that start and measure"):
        search(machine)


def test_interrupted_search_continues_with_the_comparisons_that_it_has(search, tmp_path):
    whole = Machine(7)
    search(whole)
    path = tmp_path / "state" / STATE
    stored = path.read_text().splitlines(keepends=True)
    path.write_text("".join(stored[:2]))
    rest = Machine(7)
    found, lines = search(rest)
    assert found.lines()[0].startswith("culprit: b7 ")
    assert lines[0].startswith("2 comparisons of an earlier call count.")
    assert len(rest.asked) == len(path.read_text().splitlines()) - 2
    search(done := Machine(7))
    assert done.asked == []


def test_repaired_end_is_measured_again_by_the_same_command(search):
    with pytest.raises(UsageError):
        search(Machine(7, silent=(15,)))
    found, _ = search(Machine(7))
    assert found.lines()[0].startswith("culprit: b7 ")


def test_moved_range_uses_comparisons_with_the_same_first_build_alone(search):
    search(Machine(7))
    longer = Machine(7, builds=17)
    assert search(longer)[0].lines()[0].startswith("culprit: b7 ")
    assert {options[1] for options in longer.asked} == {"--llmperf-engine=vllm=16"}
    moved = Machine(6, builds=16, first=1)
    found, lines = search(moved)
    assert not any("earlier call" in line for line in lines)
    assert found.lines()[0].startswith("culprit: b7 ")


@pytest.mark.parametrize("damage", [
    lambda text: text[:-40], lambda text: text[:-1], lambda text: text + "\0\0\0", lambda text: "{}\n" + text,
    lambda text: text + '["b1"]\n',
], ids=["cut", "no line end", "null bytes", "first line", "list"])
def test_whole_lines_of_a_damaged_state_count_and_damaged_lines_are_named(search, tmp_path, damage):
    search(Machine(7))
    path = tmp_path / "state" / STATE
    stored = path.read_text()
    path.write_text(damage(stored))
    found, lines = search(rest := Machine(7))
    assert found.lines()[0].startswith("culprit: b7 ")
    cut = damage(stored) == stored[:-40]
    assert len(rest.asked) == cut
    damaged = [line for line in lines if "comparisons.jsonl: damaged lines are left out: " in line]
    assert len(damaged) == (damage(stored) != stored[:-1])
    assert all(json.loads(line)["reference"] == "b0" for line in path.read_text().splitlines())
    assert len(path.read_text().splitlines()) == len(stored.splitlines())


def test_second_process_with_the_same_search_is_refused_and_the_first_goes_on(search):
    machine, refusals = Machine(7), []
    measured_session = machine.session

    def session(options, folder):
        if not refusals:
            with pytest.raises(UsageError) as refused:
                search(Machine(7))
            refusals.append(str(refused.value))
        return measured_session(options, folder)

    machine.session = session
    assert search(machine)[0].lines()[0].startswith("culprit: b7 ")
    assert refusals[0].endswith("state: another process makes this search. Wait for its end.")


def test_test_without_comparison_is_refused(search):
    machine = Machine(7)
    plain = TestResult("t.py::test", True, None, (machine.measured(1.0),), ())
    machine.session = lambda options, folder: [plain]
    with pytest.raises(UsageError, match=r"Write perf\.compare_with_baseline\(run\)"):
        search(machine)


def test_failed_check_is_not_given_as_the_reason_of_a_missing_comparison(search):
    machine = Machine(7)
    check = CheckResult("ttft_p50 <= 1us", Verdict.FAIL, "ttft_p50", cause=Stated("too slow"))
    machine.session = lambda options, folder: [TestResult("t.py::test", True, None, (machine.measured(1.0),), (check,))]
    with pytest.raises(UsageError, match=r"Write perf\.compare_with_baseline\(run\)"):
        search(machine)


def test_session_that_measures_nothing_gives_the_reason_of_its_test(monkeypatch, tmp_path):
    def session(options, folder, root):
        write_test(folder / "run", "t.py::test", [], [], complete=False, error="vLLM has no flag no_such")

    monkeypatch.setattr(bisection, "run_session", session)
    with pytest.raises(UsageError, match=r"t\.py::test: vLLM has no flag no_such"):
        measured_tests([], tmp_path)


def test_build_with_infinite_values_is_skipped_with_the_reason_of_the_test(search):
    machine = Machine(8)
    measured_session = machine.session

    def session(options, folder):
        (test,) = measured_session(options, folder)
        if not options[1].endswith("=7"):
            return [test]
        rest, candidate, reference = test.measurements
        failed = tuple(Run.of_values(run.seed, 1, {METRIC: 5.0}, {METRIC: None}) for run in candidate.runs)
        check = CheckResult(f"reference {METRIC}", Verdict.INCONCLUSIVE, METRIC, cause=Stated("12 requests failed"))
        candidate = Measurement("vllm('m')", "w", CONDITIONS, failed)
        return [replace(test, measurements=(rest, candidate, reference), checks=(check,))]

    machine.session = session
    found, _ = search(machine)
    assert found.lines()[0].startswith("culprit is one of: b7 or b8 (")
    assert any("skipped: b7: t.py::test: " in line and "12 requests failed" in line for line in found.lines())


def test_several_tests_are_refused_by_name(search):
    machine = Machine(7)
    plain = TestResult("t.py::test", True, None, (), ())
    machine.session = lambda options, folder: [plain, plain]
    with pytest.raises(UsageError, match="2 tests were measured"):
        search(machine)
