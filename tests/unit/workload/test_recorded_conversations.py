"""Traces whose lines name their parent: turns, branches, tool calls, broken lines."""

import json

import pytest

from pytest_llmperf import poisson, recorded, trace
from pytest_llmperf.errors import SpecError
from pytest_llmperf.workload.trace import anonymise
from pytest_llmperf.workload.trace_file import read_lines


def line(at_ms, asked, answer, chat=None, parent=None, **more):
    return {"timestamp": at_ms, "input_length": asked, "output_length": answer, "chat_id": chat,
            "parent_chat_id": parent, **more}


#: A question, a tool result half a second later, two branches from there, and a stranger.
TALK = [
    line(0, 100, 20, 1, -1), line(300, 40, 4, 9), line(500, 150, 30, 2, 1), line(4000, 200, 10, 3, 2),
    line(4100, 190, 10, 4, 2),
]


@pytest.fixture
def requests_of(tmp_path):
    def requests_of(lines, **options):
        path = tmp_path / "talk.jsonl"
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in lines))
        return trace(**{"path": path, "arrivals": recorded(), "requests": len(lines), "reply": "server"} | options)

    return requests_of


def test_turn_of_trace_continues_parent_with_new_tokens_only(requests_of):
    first, stranger, tool, *branches = requests_of(TALK).requests()
    assert (first.turn, first.after, first.continues, first.answer_used) == (1, None, False, True)
    assert (stranger.turn, stranger.after, stranger.answer_used) == (1, None, False)
    assert (tool.turn, tool.after, len(tool.prompt), tool.prompt_tokens) == (2, 0, 150 - 120, 150)
    assert [(b.turn, b.after, len(b.prompt), b.prompt_tokens) for b in branches] == [(3, 2, 20, 200), (3, 2, 10, 190)]
    assert all(branch.continues for branch in branches)
    assert branches[0].prompt[:4] != branches[1].prompt[:4]


def test_turns_of_trace_keep_recorded_times(requests_of):
    assert [r.at_ns for r in requests_of(TALK, arrivals=recorded(speed=2)).requests()] == [
        0, 150_000_000, 250_000_000, 2_000_000_000, 2_050_000_000]


def test_seeded_trace_ignores_parents(requests_of):
    assert all(r.after is None and not r.continues for r in requests_of(TALK, reply="seeded").requests())


def test_shortened_history_is_new_prompt_after_parent(requests_of):
    *_, cut = requests_of([line(0, 100, 20, "a"), line(9, 110, 5, "b", "a")]).requests()
    assert (cut.after, cut.turn, cut.continues, len(cut.prompt)) == (0, 2, False, 110)


def test_turn_without_selected_parent_is_first_turn(requests_of):
    late = requests_of(TALK, begin_s=0.4, requests=3).requests()
    assert [(r.turn, r.after) for r in late] == [(1, None), (2, 0), (2, 0)]


def test_rate_of_trace_counts_requests_of_conversations(requests_of):
    assert requests_of(TALK, arrivals=recorded(rate=8)).requests_per_arrival == 1


def test_expected_hit_rate_of_branches_counts_shared_history(requests_of):
    total = 100 + 40 + 150 + 200 + 190
    assert requests_of(TALK).expected_hit_rate(1) == pytest.approx((120 + 180 + 180) / total)


def test_anonymised_trace_keeps_parents_under_other_ids(requests_of, tmp_path):
    workload = requests_of(TALK)
    anonymise(workload.path, tmp_path / "other.jsonl")
    before, after = list(read_lines(workload.path)), list(read_lines(str(tmp_path / "other.jsonl")))
    ids = {a.chat: b.chat for a, b in zip(before, after, strict=True)}
    assert len(set(ids.values())) == 5
    assert not set(ids) & set(ids.values())
    assert [b.parent for b in after] == [None if a.parent is None else ids[a.parent] for a in before]


@pytest.mark.parametrize(("broken", "words"), [
    (line(0, 10, 2, 5, 5), "line 2: parent_chat_id is '5' and chat_id is '5'"),
    (line(0, 10, 2, None, 5), "line 2: parent_chat_id is '5' and chat_id is None"),
    (line(0, 10, 2, 1.5), "line 2: chat_id must be a number or a text, got 1.5"),
])
def test_broken_link_of_trace_is_refused_with_line_number(requests_of, broken, words):
    with pytest.raises(SpecError, match=words):
        requests_of([line(0, 10, 2, 1), broken]).requests()


def test_trace_without_parents_has_no_server_replies(requests_of):
    with pytest.raises(SpecError, match="has no parent_chat_id of a request"):
        requests_of([line(0, 10, 2), line(5, 10, 2)]).requests()


def test_server_replies_of_trace_need_recorded_times(requests_of):
    with pytest.raises(SpecError, match=r"write arrivals=recorded\(\).*got poisson\(2\)"):
        requests_of(TALK, arrivals=poisson(2))
