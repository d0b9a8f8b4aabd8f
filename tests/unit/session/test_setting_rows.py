"""The file that a tuning goes on from, and the Pareto front."""

import json

import pytest

from pytest_llmperf.errors import UsageError
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.session.bisection import TriedRate
from pytest_llmperf.session.setting_rows import SettingFile, SettingRow, Standing, standings

RATES = (TriedRate(8.0, Verdict.PASS, True, runs=2), TriedRate(16.0, Verdict.INCONCLUSIVE, False, runs=1))
ROWS = [SettingRow({"a": 1}, {"ttft_p95": 40.0}, rates=RATES), SettingRow({"a": 2}, {}, "it died")]


@pytest.fixture
def file(tmp_path):
    return SettingFile(tmp_path / "tune.jsonl", "vllm('m'), …")


def test_appended_rows_are_read_back(file):
    assert file.read() == []
    for row in ROWS:
        file.append(row)
    assert file.read() == ROWS
    assert list(map(str, file.read()[0].rates)) == ["8/s within (proven)", "16/s over (one run)"]


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
        ("no json\n", "no file of a tuning"),
        ('{"schema": 1, "search": "x"}\n', "schema 1"),
        ('{"schema": 3, "search": "another"}\n', "holds another tuning"),
        ("[]\n", "no file of a tuning"),
        ('{"schema": 3, "search": "vllm(\'m\'), …"}\n{"flags": []}\n', "no file of a tuning"),
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
    return SettingRow({}, means, runs=runs, kind=kind)


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
    stored = SettingRow({}, {"ttft_p95": 900.0, "output_throughput": 1.0})
    assert standings([row(100, 900), stored], METRICS) == [Standing.FRONT, Standing.UNDECIDED]


def test_unwritable_file_of_rows_is_refused_before_measuring(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        SettingFile(tmp_path / "missing" / "tune.jsonl", "vllm('m'), …").begin()
    with pytest.raises(UsageError, match="cannot be read"):
        SettingFile(tmp_path, "vllm('m'), …").begin()


def test_the_lines_are_json(file):
    file.append(ROWS[0])
    head, line = map(json.loads, file.path.read_text().splitlines())
    assert head["schema"] == 3
    assert line["flags"] == {"a": 1}
