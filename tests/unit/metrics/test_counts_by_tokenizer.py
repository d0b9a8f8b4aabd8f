"""Answers without counts of the server, counted by a named tokenizer."""

import pytest

from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.model.api import Api
from pytest_llmperf.model.request import Request
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import TokensUnverified
from pytest_llmperf.results.requests_file import decode, encode
from pytest_llmperf.results.sentences import basis_text, reason_text
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.testing.scripted_transport import stream_exchange
from pytest_llmperf.testing.streams import StreamShape
from pytest_llmperf.wire.completions import to_record

FREE = Api(dialect="openai")
SLO = parse_slo("tpot_p50 <= 20ms")


def words(texts):
    return tuple(len(text.split()) for text in texts)


def records(count, text=" x y", chunks=4, requests=200):
    """A stream of four chunks each; the usage counts the chunks."""
    shape = StreamShape((1,) * chunks, continuous_usage=False, text=text)
    return [to_record(Request(i, "a", 20, None), stream_exchange(shape, index=i, intended_ns=i * 10**8), FREE, count)
            for i in range(requests)]


def judged(runs):
    return judge_slo(SLO, runs, ["1"] * len(runs))


def test_tokenizer_gives_counts_of_chunks_and_answer():
    record = records(words, requests=1)[0]
    assert (record.chunk_tokens, record.text_tokens, record.output_tokens) == ((2, 2, 2, 2), 8, 4)


def test_counts_of_the_server_outrank_the_tokenizer():
    record = to_record(Request(0, "a", 20, None), stream_exchange(StreamShape((1,) * 4)), FREE, words)
    assert (record.chunk_tokens, record.text_tokens) == ((1,) * 4, None)


def test_tokenizer_turns_an_unverified_count_into_a_verdict():
    unverified = judged([measure(records(None))] * 3)
    assert (unverified.verdict, "tokenizer=" in reason_text(unverified)) == (Verdict.INCONCLUSIVE, True)
    runs = [measure(records(words, text=" x"), None, "llama")] * 3
    assert {run.counted_by for run in runs} == {CountedBy.TOKENIZER}
    result = judged(runs)
    assert result.verdict is Verdict.PASS
    assert "token counts by tokenizer llama" in basis_text(result)


def test_tokenizer_that_disagrees_with_the_usage_leaves_the_count_unverified():
    runs = [measure(records(words), None, "llama")] * 3
    assert runs[0].counted_by is None
    result = judged(runs)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert isinstance(result.cause, TokensUnverified)
    assert result.numbers["tokenizer"] == "llama"
    assert (result.numbers["text_tokens"], result.numbers["usage_tokens"]) == (1600, 800)


def test_latency_that_rests_on_no_count_names_no_tokenizer():
    runs = [measure(records(words, text=" x"), None, "llama")] * 3
    result = judge_slo(parse_slo("ttft_p50 <= 500ms"), runs, ["1"] * 3)
    assert "tokenizer" not in basis_text(result)


@pytest.mark.parametrize("count", [None, words])
def test_requests_file_keeps_counts_of_the_tokenizer(tmp_path, count):
    path = tmp_path / "requests.json.gz"
    path.write_bytes(encode(records(count, requests=1)))
    (record,) = decode(path).records
    assert record.text_tokens == (None if count is None else 8)
