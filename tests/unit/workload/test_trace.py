"""Recorded traffic: formats, selection, times, shared blocks and anonymised traces."""

import gzip
import json
import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_llmperf.errors import SpecError
from pytest_llmperf.workload import anonymise, poisson, random_tokens, recorded, trace
from pytest_llmperf.workload.trace_file import read_lines

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "stubs" / "write_traces.py"))
TEXTS = ["mooncake.jsonl", "burstgpt.csv", "azure.csv", "spans.jsonl"]
FORMATS = [*TEXTS, "requests.json.gz"]


@pytest.fixture
def folder(tmp_path):
    SCRIPT["write"](tmp_path, 60)
    SCRIPT["write_requests"](tmp_path, 60)
    return tmp_path


def replay(path, **changes):
    return trace(**{"path": path, "arrivals": recorded(), "requests": 20} | changes).requests()


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_recorded_lengths_and_times(folder, name):
    entries = [json.loads(line) for line in (folder / "mooncake.jsonl").read_text().splitlines()[:20]]
    requests = replay(folder / name)
    assert [request.prompt_tokens for request in requests] == [entry["input_length"] for entry in entries]
    assert [len(request.prompt) for request in requests] == [entry["input_length"] for entry in entries]
    assert [request.output_tokens for request in requests] == [entry["output_length"] for entry in entries]
    assert [request.at_ns for request in requests] == [
        (entry["timestamp"] - entries[0]["timestamp"]) * 1_000_000 for entry in entries
    ]


def test_equal_block_ids_give_equal_tokens_and_other_seed_gives_other_tokens(folder):
    first, second, _, fourth = replay(folder / "mooncake.jsonl", requests=4)
    assert first.prompt[:512] == fourth.prompt[:512] != second.prompt[:512]
    assert replay(folder / "mooncake.jsonl", seed=1)[0].prompt != first.prompt


def test_speed_and_rate_scale_recorded_times(folder):
    plain, fast = replay(folder / "azure.csv"), replay(folder / "azure.csv", arrivals=recorded(speed=2))
    assert fast[-1].at_ns == round(plain[-1].at_ns / 2)
    assert replay(folder / "azure.csv", arrivals=recorded(rate=4))[-1].at_ns == 5_000_000_000
    assert trace(path="x", arrivals=recorded(), requests=2).at_rate(3).rate == 3


def test_window_and_length_limit_select_requests(folder):
    requests = replay(folder / "azure.csv", begin_s=2, end_s=8, most_tokens=1500, requests=5)
    assert max(request.prompt_tokens + request.output_tokens for request in requests) <= 1500
    assert all(earlier.at_ns <= later.at_ns for earlier, later in pairwise(requests))
    with pytest.raises(SpecError, match=r"\d+ usable requests .* 60 were asked for"):
        replay(folder / "azure.csv", end_s=1, requests=60)


@pytest.mark.parametrize("name", TEXTS)
def test_message_on_broken_line_has_line_number(folder, name):
    lines = (folder / name).read_text().splitlines()
    (folder / name).write_text("\n".join([*lines[:9], "broken", *lines[9:]]))
    with pytest.raises(SpecError, match=rf"{name}, line 10: "):
        replay(folder / name)


@pytest.mark.parametrize(("name", "value", "wrong", "cause"), [
    ("mooncake.jsonl", r'"input_length": \d+', '"input_length": "x"', "input_length must be an integer from 0 .*'x'"),
    ("burstgpt.csv", r"^[^,]+", "soon", "timestamp must be a number of seconds, got 'soon'"),
    ("azure.csv", r",\d+,", ",-5,", "contexttokens must be an integer from 0 .*-5"),
    ("spans.jsonl", r'"intValue": "\d+"', '"intValue": "x"', "gen_ai.usage.input_tokens must be an integer"),
])
def test_message_on_impossible_value_names_field(folder, name, value, wrong, cause):
    lines = (folder / name).read_text().splitlines()
    lines[5], places = re.subn(value, wrong, lines[5], count=1)
    assert places == 1, lines[5]
    (folder / name).write_text("\n".join(lines))
    with pytest.raises(SpecError, match=f"{name}, line 6: .*{cause}"):
        replay(folder / name)


def test_unknown_format_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(SpecError, match="begins no known format"):
        replay(tmp_path / "notes.txt")


def test_recorded_arrivals_of_another_workload_are_refused():
    with pytest.raises(SpecError, match="only trace"):
        random_tokens(input=8, output=8, requests=2, arrivals=recorded())
    with pytest.raises(SpecError, match="not both"):
        recorded(speed=1, rate=2)


def test_other_arrivals_replace_recorded_times(folder):
    requests = replay(folder / "azure.csv", arrivals=poisson(10))
    assert requests[-1].at_ns == 2_000_000_000


@pytest.mark.parametrize("name", FORMATS)
def test_anonymised_trace_keeps_lengths_and_times_without_contents(folder, name):
    assert anonymise(str(folder / name), folder / "out.jsonl") == 60
    before, after = list(read_lines(str(folder / name))), list(read_lines(str(folder / "out.jsonl")))
    for line, other in zip(before, after, strict=True):
        assert (other.input_tokens, other.output_tokens) == (line.input_tokens, line.output_tokens)
        assert other.at_ns == line.at_ns - before[0].at_ns
    assert "private" not in (folder / "out.jsonl").read_text()


def test_anonymised_trace_keeps_shared_blocks_under_other_ids(folder):
    anonymise(str(folder / "mooncake.jsonl"), folder / "out.jsonl")
    original_blocks = [b for line in read_lines(str(folder / "mooncake.jsonl")) for b in line.blocks]
    after = [b for line in read_lines(str(folder / "out.jsonl")) for b in line.blocks]
    assert [original_blocks.index(block) for block in original_blocks] == [after.index(block) for block in after]
    assert not set(original_blocks) & set(after)


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda _: b"\x1f\x8bno gzip",
                                    lambda _: gzip.compress(b'{"intended_ns": [0]}')])
def test_damaged_requests_file_is_refused_with_name_and_cause(folder, damage):
    path = folder / "requests.json.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SpecError, match=r"requests\.json\.gz is no requests file: \w+: "):
        replay(path)


def write_lines(folder, rows, encoding="utf-8"):
    path = folder / "t.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding=encoding)
    return path


def bailian(index, **changes):
    asked = 40 + 16 * index
    return {"chat_id": index, "parent_chat_id": -1, "timestamp": 2.5 * index, "input_length": asked,
            "output_length": 10, "type": "text", "turn": 1, "hash_ids": list(range(-(-asked // 16)))} | changes


@pytest.mark.parametrize("left_out", [(), ("type",), ("turn",), ("type", "turn"), ("hash_ids",), ("hash_ids", "type")])
def test_bailian_trace_has_seconds_and_blocks_of_16_tokens(tmp_path, left_out):
    rows = [{name: value for name, value in bailian(i).items() if name not in left_out} for i in range(6)]
    requests = replay(write_lines(tmp_path, rows), requests=6)
    assert [request.at_ns for request in requests] == [2_500_000_000 * i for i in range(6)]
    if "hash_ids" not in left_out:
        assert requests[0].prompt[:32] == requests[5].prompt[:32]
        assert requests[0].prompt[:16] != requests[0].prompt[16:32]
    anonymise(str(tmp_path / "t.jsonl"), tmp_path / "other.jsonl")
    assert [line.at_ns for line in read_lines(str(tmp_path / "other.jsonl"))] == [r.at_ns for r in requests]


def mooncake(index, asked, gap, block):
    return {"timestamp": gap * index, "input_length": asked, "output_length": 8,
            "hash_ids": list(range(-(-asked // block)))}


def test_blocks_of_another_size_name_format_unit_and_argument(tmp_path):
    path = write_lines(tmp_path, [mooncake(i, 640, 500, 64) for i in range(6)])
    with pytest.raises(SpecError, match=r"line 1: 10 hash_ids for 640 tokens.*read as Mooncake JSONL with times in "
                                        r"milliseconds\)\. Blocks of 64 tokens fit: write block=64\. Nothing"):
        replay(path, requests=6)
    first, *_, last = replay(path, requests=6, block=64)
    assert first.prompt == last.prompt


def test_absurd_rate_names_unit_and_unit_is_taken(tmp_path):
    path = write_lines(tmp_path, [mooncake(i, 600, 2.5, 512) for i in range(6)])
    with pytest.raises(SpecError, match=r'400 requests/s as recorded, read as Mooncake .*times in ms.*unit="s"'):
        replay(path, requests=6)
    assert replay(path, requests=6, unit="s")[-1].at_ns == 12_500_000_000
    assert replay(path, requests=6, unit="ms")[-1].at_ns == 12_500_000
    assert replay(path, requests=6, arrivals=recorded(rate=2))[-1].at_ns == 3_000_000_000


@pytest.mark.parametrize(("changes", "problem"), [
    ({"timestamp": 10**399}, "line 2: timestamp 1000"), ({"timestamp": float("nan")}, "line 2: timestamp nan"),
    ({"timestamp": float("inf")}, "timestamp inf"), ({"timestamp": None}, "number of seconds, got None"),
    ({"input_length": -5}, "input_length must be"), ({"input_length": 4.5}, "input_length must be"),
    ({"output_length": "\x1b" * 999}, r"got '(\\x1b){49}"),
])
def test_impossible_number_of_trace_names_line_and_value(tmp_path, changes, problem):
    with pytest.raises(SpecError, match=problem):
        replay(write_lines(tmp_path, [bailian(0), bailian(1, **changes)]), requests=2)


def test_trace_with_byte_order_mark_and_lengths_as_floats_is_read(tmp_path):
    rows = [bailian(i, input_length=48.0, output_length=9.0, hash_ids=[1, 2, 3]) for i in range(3)]
    requests = replay(write_lines(tmp_path, rows, "utf-8-sig"), requests=3)
    assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(48, 9)}


def test_line_before_first_line_of_unsorted_trace_is_kept(tmp_path):
    rows = [bailian(2), bailian(0), bailian(1)]
    assert [request.prompt_tokens for request in replay(write_lines(tmp_path, rows), requests=3)] == [40, 56, 72]


@pytest.mark.parametrize("option", [{"unit": "s"}, {"block": 16}])
def test_option_that_format_cannot_use_is_refused(folder, option):
    with pytest.raises(SpecError, match=rf"Azure CSV, which .* Leave out {next(iter(option))}="):
        replay(folder / "azure.csv", **option)


def test_unknown_unit_is_refused():
    with pytest.raises(SpecError, match="unit must be one of s, ms, us, ns, got 'min'"):
        trace(path="x", arrivals=recorded(), requests=1, unit="min")
