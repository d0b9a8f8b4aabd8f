"""Answers that belong to another request: ids, choices, and texts that the tokens cannot have."""

import json
from dataclasses import replace

import pytest

from pytest_llmperf.model.api import Api
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.request import Request
from pytest_llmperf.testing.records import make_record
from pytest_llmperf.testing.scripted_transport import make_exchange
from pytest_llmperf.testing.streams import DONE, LAST_CHUNK, STREAM_HEAD, StreamShape, event, http_chunk, plain
from pytest_llmperf.wire.completions import AnswerIds, to_record

USAGE = {"prompt_tokens": 8, "completion_tokens": 4}
FREE = Api(dialect="openai")


def record_of(events, api=FREE, count=None):
    reads = [(0, STREAM_HEAD), *((at + 1, http_chunk(data)) for at, data in enumerate(events)), (99, LAST_CHUNK)]
    return to_record(Request(0, "a", 4, None), make_exchange(reads), api, count)


def chunks(*choices, ids=None):
    """An event for each list of choices, then usage and end."""
    named = [{} if ids is None else {"id": ids[at % len(ids)]} for at in range(len(choices))]
    return [*[event({"choices": each, **name}) for each, name in zip(choices, named, strict=True)],
            event({"choices": [], "usage": USAGE}), DONE]


def text(at, index=0, finish=None):
    return {"index": index, "text": f" w{at}", "finish_reason": finish}


def four(ids=None):
    return chunks(*[[text(at, finish="length" if at == 3 else None)] for at in range(4)], ids=ids)


@pytest.mark.parametrize("ids", [["a"], [""], [None], ["", "a", "a", "a"], [7]])
def test_constant_or_missing_id_is_valid(ids):
    assert record_of(four(ids)).ok


@pytest.mark.parametrize("ids", [["a", "b"], ["a", "a", "a", "b"], ["", "a", "b", "b"]])
def test_id_that_changes_within_a_stream_fails_the_request(ids):
    record = record_of(four(ids))
    assert record.outcome is Outcome.NOT_ASKED_FOR
    assert record.detail == "the request id changes from 'a' to 'b' within the answer"


def test_id_that_changes_within_a_response_or_native_stream_fails_the_request():
    def begun(name, kind="created", **more):
        return event({"type": f"response.{kind}", "response": {"id": name, "status": kind, **more}})
    delta = event({"type": "response.output_text.delta", "delta": " a", "item_id": "i"})
    end = {"usage": {"input_tokens": 8, "output_tokens": 2}}
    api = Api("responses", dialect="openai")
    assert record_of([begun("r"), delta, delta, begun("r", "completed", **end)], api).ok
    assert record_of([begun("r"), delta, delta, begun("s", "completed", **end)], api).outcome is Outcome.NOT_ASKED_FOR
    native = [event({"text": "x", "meta_info": {"id": name, "prompt_tokens": 8, "completion_tokens": at + 1,
                                                "finish_reason": {"type": "length"} if at else None}})
              for at, name in enumerate("ab")]
    assert record_of([*native, DONE]).outcome is Outcome.NOT_ASKED_FOR


@pytest.mark.parametrize("events", [
    [[text(0), text(0, 1)], [text(1, 0, "length"), text(1, 1, "length")]],
    [[text(0)], [text(0, 1)], [text(1)], [text(1, 1)]],
    [[text(0)], [text(1)], [text(0, 1)], [text(1, 1, "length")]],
    [[text(0, 0, "length")], [text(0, 1, "length")]],
], ids=["together", "in turn", "one after the other", "after the end"])
def test_choice_that_was_not_asked_for_fails_the_request(events):
    record = record_of(chunks(*events))
    assert record.outcome is Outcome.NOT_ASKED_FOR
    assert "the request asks for 1 answer" in record.detail


def test_third_choice_of_two_and_second_whole_choice_fail_the_request():
    two = Api(dialect="openai", fields=(("n", "2"),))
    third = [[text(0, at, "length")] for at in range(3)]
    assert "the request asks for 2 answers" in record_of(chunks(*third), two).detail
    body = json.dumps({"choices": [text(0, 0, "stop"), text(1, 1, "stop")], "usage": USAGE}).encode()
    reads = [(5, step.data) for step in plain(200, body)]
    whole = to_record(Request(0, "a", 4, None), make_exchange(reads), Api(stream=False, dialect="openai"))
    assert whole.outcome is Outcome.NOT_ASKED_FOR


def of_texts(texts):
    last = len(texts) - 1
    return record_of(chunks(*[[{"index": 0, "text": each, "finish_reason": "length" if at == last else None}]
                              for at, each in enumerate(texts)]))


@pytest.mark.parametrize("texts", [[" x x"] * 4, ["Hello" * 2, " a a", ",,", " b b"], ["abab", "caca", "dede", "fifi"],
                                   [" a", " a b", " a b c", " a b c d"]])
def test_chunks_of_a_token_that_repeat_text_are_a_contradiction(texts):
    record = of_texts(texts)
    assert record.outcome is Outcome.COUNTS_DISAGREE
    assert "each of its chunks repeats text" in record.detail


@pytest.mark.parametrize("texts", [[" x"] * 4, ["haha"] * 4, ["  ", "\n\n", "!!", "    "], [" a a", " b", " c", " d"],
                                   ["", "a", "ab", "abc"]])
def test_texts_that_tokens_can_have_are_valid(texts):
    assert of_texts(texts).ok


def listing(ids, texts=(" a", " b", " c", " d")):
    return chunks(*[[text(at, finish="length" if at == 3 else None) | {"token_ids": each, "text": said}]
                    for at, (each, said) in enumerate(zip(ids, texts, strict=True))])


def test_more_token_ids_than_usage_tokens_per_chunk_disagree():
    grown = [event({"choices": [{"index": 0, "text": " a", "token_ids": [1, 2], "finish_reason": reason}],
                    "usage": USAGE | {"completion_tokens": at + 1}})
             for at, reason in enumerate((None, None, None, "length"))]
    record = record_of([*grown, *chunks()])
    assert record.outcome is Outcome.COUNTS_DISAGREE
    assert "the events list 8 token ids, usage says 4 tokens" in record.detail


def test_text_of_other_tokens_than_the_token_ids_is_a_contradiction():
    def words(texts):
        return tuple(len(each.split()) for each in texts)
    assert record_of(listing([[1]] * 4), count=words).ok
    doubled = record_of(listing([[1]] * 4, [" a b c"] * 4), count=words)
    assert doubled.outcome is Outcome.COUNTS_DISAGREE
    assert "the text has 12 tokens by the named tokenizer, and its events list 4 token ids" in doubled.detail


def of_ids(*ids):
    return [replace(make_record(at), answer_id=name) for at, name in enumerate(ids)]


@pytest.mark.parametrize(("ids", "failed"), [
    (["a", "b", "c"], []), (["a", "a", "b", "b"], [1, 3]), (["a", "b", "a"], [2]), (["a", None, "a", "b"], [2]),
    (["a"] * 4, []), ([None] * 4, []),
], ids=["unique", "in pairs", "later", "without ids", "constant", "none"])
def test_id_of_an_earlier_answer_fails_the_request(ids, failed):
    records = AnswerIds().checked(of_ids(*ids))
    assert [record.index for record in records if record.outcome is Outcome.NOT_ASKED_FOR] == failed


def test_id_of_an_earlier_run_fails_the_request():
    ids = AnswerIds()
    assert all(record.ok for record in ids.checked(of_ids("a", "b")))
    record, _ = ids.checked(of_ids("b", "c"))
    assert (record.outcome, record.detail) == (
        Outcome.NOT_ASKED_FOR, "its request id 'b' is the id of an earlier answer")


def test_constant_id_of_a_server_is_valid_in_each_run():
    ids = AnswerIds()
    assert all(record.ok for _ in range(3) for record in ids.checked(of_ids("cmpl-0", "cmpl-0")))


def test_failed_request_with_a_repeated_id_keeps_first_reason():
    first, second = of_ids("a", "b")
    failed = replace(make_record(2, outcome=Outcome.RESET), answer_id="a")
    assert AnswerIds().checked([first, second, failed])[2].outcome is Outcome.RESET


def test_ids_of_ollama_name_no_request():
    """Ollama draws the id from 999 numbers."""
    events = [data.replace(b'"object"', b'"system_fingerprint":"fp_ollama","object"')
              for data in StreamShape((1,) * 4).events()]
    assert record_of(events).answer_id is None
    assert record_of(StreamShape((1,) * 4).events()).answer_id == "cmpl-0"
