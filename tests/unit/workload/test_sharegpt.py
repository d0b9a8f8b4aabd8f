"""ShareGPT files: the filter, the order, and what a wrong file is told."""

import json
from pathlib import Path

import pytest

from pytest_llmperf.errors import SpecError
from pytest_llmperf.workload import anonymise, closed, poisson, sharegpt


def entry(prompt: str, reply: str, *more: dict, asks: str = "human", replies: str = "gpt") -> dict:
    return {"id": "x", "conversations": [{"from": asks, "value": prompt}, {"from": replies, "value": reply}, *more]}


@pytest.fixture
def share_file(tmp_path):
    def write(content: object) -> str:
        path = tmp_path / "share.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    return write


def good(i: int) -> dict:
    return entry(f"question number {i} " * 3, "answer " * (i + 4))


def test_first_message_becomes_prompt_and_reply_gives_output_length(share_file):
    path = share_file([entry("Ümläut question here", "r" * 41)])
    (request,) = sharegpt(path=path, requests=1, arrivals=closed(1)).requests()
    assert request.prompt == "Ümläut question here"
    assert request.output_tokens == 11
    assert request.prompt_tokens is None


def test_unsuitable_conversations_are_excluded(share_file):
    path = share_file([
        entry("short", "r" * 100),                         # 2 tokens asked
        entry("q" * 100, "r" * 8),                         # 2 tokens answered
        entry("q" * 4 * 1025, "r" * 100),                  # prompt over 1,024
        entry("q" * 4 * 1024, "r" * 4 * 1025),             # together over 2,048
        entry("q" * 100, "r" * 100, asks="gpt"),           # begins with the model
        {"conversations": []},
        {"conversations": [{"from": "human", "value": None}, {"from": "gpt", "value": "r" * 100}]},
        entry("q" * 4 * 1024, "r" * 4 * 1024, asks="user", replies="assistant"),
    ])
    (request,) = sharegpt(path=path, requests=1, arrivals=closed(1)).requests()
    assert request.output_tokens == 1024
    with pytest.raises(SpecError, match=r"has 1 usable conversations .* 2 were asked for"):
        sharegpt(path=path, requests=2, arrivals=closed(1)).requests()


@pytest.mark.parametrize("cut", [("q" * 100 + "\ud83d", "r" * 100), ("q" * 100, "r" * 100 + "\ude00")])
def test_truncated_emoji_excludes_only_affected_conversation(share_file, cut):
    path = share_file([entry(*cut), entry("q" * 100 + "\N{GRINNING FACE}", "r" * 40)])
    assert "\\ud83d" in Path(path).read_text()
    (request,) = sharegpt(path=path, requests=1, arrivals=closed(1)).requests()
    assert (request.prompt, request.output_tokens) == ("q" * 100 + "\N{GRINNING FACE}", 10)


def test_seed_chooses_and_orders(share_file):
    workload = sharegpt(path=share_file([good(i) for i in range(40)]), requests=20, arrivals=poisson(4))
    first, second = workload.requests(0), workload.requests(1)
    assert first == workload.requests(0)
    assert [r.prompt for r in first] != [r.prompt for r in second]
    assert len({r.prompt for r in first}) == 20


def test_digest_follows_the_content_and_not_the_path(tmp_path):
    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for path, content in zip(paths, ([good(1)], [good(1)], [good(2)]), strict=True):
        path.write_text(json.dumps(content))
    a, b, c = (sharegpt(path=path, requests=1, arrivals=closed(1)).digest() for path in paths)
    assert a == b != c


@pytest.mark.parametrize("content", ["not json", "{}", "3", "[1, 2]", '{"a": [1]}'])
def test_malformed_sharegpt_file_is_refused_with_path(share_file, content):
    path = share_file(content)
    with pytest.raises(SpecError, match=r"sharegpt: .*share\.json") as caught:
        sharegpt(path=path, requests=1, arrivals=closed(1)).requests()
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused_with_path(tmp_path):
    workload = sharegpt(path=tmp_path / "none.json", requests=1, arrivals=closed(1))
    with pytest.raises(SpecError, match=r"cannot read .*none\.json: No such file"):
        workload.requests()


def test_anonymised_conversations_keep_speakers_and_lengths_without_contents(tmp_path):
    question = "My secret question, with an ümlaut?"
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": "secret " * 30}]
    source, target = tmp_path / "talk.json", tmp_path / "other.json"
    source.write_text(json.dumps([{"id": "secret-7", "conversations": turns}] * 5))
    assert anonymise(str(source), target) == 5
    assert "secret" not in target.read_text()
    written = json.loads(target.read_text())
    assert {tuple(len(turn["value"].encode()) for turn in each["conversations"]) for each in written} == {
        tuple(len(turn["value"].encode()) for turn in turns)}
    assert len({each["conversations"][0]["value"] for each in written}) == 5
    before, after = (sharegpt(path=path, arrivals=poisson(1), requests=5).requests() for path in (source, target))
    assert [request.output_tokens for request in before] == [request.output_tokens for request in after]


def test_broken_file_is_not_anonymised(tmp_path):
    source = tmp_path / "talk.json"
    source.write_text("{")
    with pytest.raises(SpecError, match="is not a JSON list"):
        anonymise(str(source), tmp_path / "other.json")
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]


def test_message_on_unknown_keys_of_file_lists_keys(tmp_path):
    entry = {"id": 1, "messages": [{"role": "user", "content": "a"}]}
    (tmp_path / "talk.json").write_text(json.dumps([entry]))
    with pytest.raises(SpecError, match=r"keys \['id', 'messages'\] and turns in 'messages' with \['role'"):
        sharegpt(path=tmp_path / "talk.json", arrivals=closed(1), requests=1).requests()
