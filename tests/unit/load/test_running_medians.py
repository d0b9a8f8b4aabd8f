"""Latencies of a replay that goes on, from reads alone."""

from pytest_llmperf.load.recording import RecordingTail, RecordingWriter
from pytest_llmperf.load.transport import RunningMedians
from pytest_llmperf.testing.scripted_transport import make_exchange, stream_exchange
from pytest_llmperf.testing.streams import StreamShape

MS = 1_000_000


def test_ttft_median_counts_from_intended_send_to_content():
    so_far = RunningMedians()
    assert (so_far.ttft_ns, so_far.itl_ns) == (None, None)
    for ttft_ms in (40, 90, 50):
        so_far.add(stream_exchange(StreamShape(chunk_tokens=(1,) * 5), intended_ns=7 * MS, ttft_ns=ttft_ms * MS))
    assert so_far.ttft_ns == 50 * MS
    assert so_far.itl_ns == 8 * MS  # four gaps of 10 ms, and the end that came with the last chunk


def test_answers_without_content_keep_medians_unchanged():
    so_far = RunningMedians()
    so_far.add(make_exchange([(5, b"HTTP/1.1 500 Oops\r\n\r\n")]))
    so_far.add(make_exchange([]))
    assert so_far.ttft_ns is None


def test_one_read_has_a_time_to_first_token_and_no_gap():
    so_far = RunningMedians()
    so_far.add(make_exchange([(5, b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n")]))
    assert (so_far.ttft_ns, so_far.itl_ns) == (5, None)


def test_recording_is_read_during_writing(tmp_path):
    path = tmp_path / "recording"
    tail = RecordingTail(path)
    assert list(tail.exchanges()) == []
    writer = RecordingWriter(path)
    writer.start(0)
    writer.exchange(make_exchange([(1, b"a")], index=0))
    assert [exchange.index for exchange in tail.exchanges()] == [0]
    assert list(tail.exchanges()) == []
    whole = path.read_bytes()
    writer.exchange(make_exchange([(2, b"b")], index=1))
    more = path.read_bytes()
    path.write_bytes(more[:-1])  # caught in the midst of a frame
    assert list(tail.exchanges()) == []
    path.write_bytes(more)
    (read,) = tail.exchanges()
    assert (read.index, read.data) == (1, b"b")
    assert len(whole) < len(more)
