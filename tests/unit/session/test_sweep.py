"""Combinations, the file that a sweep goes on from, and the Pareto front."""

import json

import pytest

from pytest_llmperf import closed, random_tokens, vllm
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import EnvironmentMissing, HardwareBusy, ServerDied, UsageError
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.session.sweep import Standing, SweepFile, SweepPlan, SweepRow, measure_row, standings
from pytest_llmperf.testing.records import make_record

ROWS = [SweepRow({"a": 1}, {"ttft_p95": 40.0}), SweepRow({"a": 2}, {}, "it died")]


@pytest.fixture
def file(tmp_path):
    return SweepFile(tmp_path / "sweep.jsonl", "vllm('m'), …")


def test_appended_rows_are_read_back(file):
    assert file.read() == []
    for row in ROWS:
        file.append(row)
    assert file.read() == ROWS


def test_row_truncated_by_kill_is_dropped_and_file_accepts_rows(file):
    for row in ROWS:
        file.append(row)
    whole = file.path.read_bytes()
    for size in range(len(whole)):
        file.path.write_bytes(whole[:size])
        content = file.read()
        assert content == ROWS[: len(content)]
        file.append(ROWS[0])
        assert file.read() == [*content, ROWS[0]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no json\n", "no file of a sweep"),
        ('{"schema": 1, "sweep": "x"}\n', "schema 1"),
        ('{"schema": 2, "sweep": "another"}\n', "holds another sweep"),
        ("[]\n", "no file of a sweep"),
        ('{"schema": 2, "sweep": "vllm(\'m\'), …"}\n{"flags": []}\n', "no file of a sweep"),
        (b"\xff\n", "cannot be read"),
    ],
    ids=["text", "older", "another", "list", "row", "bytes"],
)
def test_a_file_of_something_else_is_refused_and_left_alone(file, content, words):
    data = content if isinstance(content, bytes) else content.encode()
    file.path.write_bytes(data)
    with pytest.raises(UsageError, match=words):
        file.read()
    assert file.path.read_bytes() == data


def row(ttft_ms, throughput, spread=0.002, kind="h200"):
    """A combination with three runs around these means."""
    means = {"ttft_p95": ttft_ms, "output_throughput": throughput}
    runs = {name: [None if mean is None else mean * (1 + spread * step) for step in (-1, 0, 1)]
            for name, mean in means.items()}
    return SweepRow({}, means, runs=runs, kind=kind)


METRICS = ("ttft_p95", "output_throughput")


def test_standings_use_direction_of_each_metric():
    slow_much, fast_little, beaten, equal = row(90, 900), row(30, 300), row(200, 400), row(30, 300)
    unknown = row(None, 9000)
    assert standings([slow_much, fast_little, beaten, equal, unknown], METRICS) == [
        Standing.FRONT, Standing.FRONT, Standing.BEATEN, Standing.FRONT, Standing.BEATEN]


def test_worse_means_without_proven_difference_are_undecided():
    best, close = row(100, 900), row(104, 897)
    assert standings([best, close], METRICS) == [Standing.FRONT, Standing.UNDECIDED]
    far = row(300, 897)
    assert standings([best, far], METRICS) == [Standing.FRONT, Standing.BEATEN]


def test_combination_without_runs_is_never_proven_to_be_beaten():
    stored = SweepRow({}, {"ttft_p95": 900.0, "output_throughput": 1.0})
    assert standings([row(100, 900), stored], METRICS) == [Standing.FRONT, Standing.UNDECIDED]


def test_unwritable_sweep_file_is_refused_before_measuring(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        SweepFile(tmp_path / "missing" / "sweep.jsonl", "vllm('m'), …").begin()
    with pytest.raises(UsageError, match="cannot be read"):
        SweepFile(tmp_path, "vllm('m'), …").begin()


def test_the_lines_are_json(file):
    file.append(ROWS[0])
    head, line = map(json.loads, file.path.read_text().splitlines())
    assert head["schema"] == 2
    assert line["flags"] == {"a": 1}


class Half:
    """A `Perf` whose engine fails half of the requests."""

    def __init__(self, measurement):
        self.measurement = measurement

    def measure(self, *_given, **_options):
        return self.measurement


class Refusing:
    """A `Perf` that cannot measure."""

    def __init__(self, error):
        self.error = error

    def measure(self, *_given, **_options):
        raise self.error


ASKED = SweepPlan(vllm("m"), random_tokens(input=8, output=5, arrivals=closed(1), requests=20), ("ttft_p95",))


def test_only_server_failures_become_problem_of_combination():
    assert measure_row(Refusing(ServerDied("it died")), Settings(), ASKED, {}).problem == "it died"
    for error in (EnvironmentMissing("vllm is not installed"), HardwareBusy("somebody is there")):
        with pytest.raises(type(error)):
            measure_row(Refusing(error), Settings(), ASKED, {})


@pytest.mark.parametrize(("metrics", "problem"), [(("ttft_p95",), True), (("ttft_p95", "error_rate"), False)])
def test_failed_requests_are_a_problem_unless_error_rate_is_requested(make_run, make_measurement, metrics, problem):
    outcomes = [Outcome.OK, Outcome.HTTP_STATUS]
    records = [make_record(i, intended_ms=100 * i, outcome=outcomes[i % 2]) for i in range(20)]
    plan = SweepPlan(vllm("m"), random_tokens(input=8, output=5, arrivals=closed(1), requests=20), metrics)
    row = measure_row(Half(make_measurement(make_run(records))), Settings(), plan, {})
    assert bool(row.problem) is problem
    assert bool(row.metrics) is not problem
