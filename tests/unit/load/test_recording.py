"""The file that the load process leaves, whole or torn."""

from array import array

import pytest

from pytest_llmperf.load.arrivals import BINS, Histogram
from pytest_llmperf.load.pipe_protocol import SIZE, pack_plan, unpack_plan
from pytest_llmperf.load.recording import End, RecordingWriter, read_recording
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import Channel, ConversationPart, LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.request import Cancellation, RetryPolicy
from pytest_llmperf.testing.scripted_transport import make_exchange

EXCHANGES = [
    make_exchange([(1 << 40, b"abc"), ((1 << 40) + 5, b"\x00\xff")], index=0, intended_ns=-3, sent_ns=0, reused=True),
    make_exchange([], index=7, sent_ns=None, ending=Ending.CONNECT_FAILED, error="refused: ü"),
]


def histogram_of(*durations_ns):
    histogram = Histogram()
    for duration_ns in durations_ns:
        histogram.add(duration_ns)
    return histogram


def end_of(ended_ns):
    return End(ended_ns, 13, 14, 15, 16, 17, histogram_of(1 << 20), histogram_of(), histogram_of(5))


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "recording"
    writer = RecordingWriter(path)
    writer.start(11)
    writer.exchange(EXCHANGES[0])
    writer.lag(array("q", [1, 2]))
    writer.exchange(EXCHANGES[1])
    writer.lag(array("q", [3]))
    writer.end(end_of(12))
    return path


def test_recording_read_equals_recording_written(recorded):
    recording = read_recording(recorded)
    assert recording.started_ns == 11
    assert recording.exchanges == {0: EXCHANGES[0], 7: EXCHANGES[1]}
    assert list(recording.loop_lag_ns) == [1, 2, 3]
    end = recording.end
    assert (end.ended_ns, end.clock_gap_ns, end.cpu_ns, end.elapsed_ns, end.memory_bytes,
            end.turnaround_ns) == (12, 13, 14, 15, 16, 17)
    counted = [histogram.counts.tolist() for histogram in (end.read_delays, end.stamp_errors, end.turnarounds)]
    assert counted == [histogram_of(1 << 20).counts.tolist(), [0] * BINS, histogram_of(5).counts.tolist()]


def test_every_ending_is_read_back_from_recording(tmp_path):
    writer = RecordingWriter(tmp_path / "r")
    made = [make_exchange([], index=index, ending=ending) for index, ending in enumerate(Ending)]
    for exchange in made:
        writer.exchange(exchange)
    writer.end(end_of(0))
    assert list(read_recording(tmp_path / "r").exchanges.values()) == made


def test_truncated_recording_contains_only_whole_exchanges(recorded):
    whole = recorded.read_bytes()
    counts = []
    for size in [*range(1000), *range(1000, len(whole), 997), len(whole) - 1]:
        recorded.write_bytes(whole[:size])
        recording = read_recording(recorded)
        assert recording.end is None
        counts.append(len(recording.exchanges))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}


def test_exchange_is_read_after_the_recording_was_removed(recorded):
    recording = read_recording(recorded)
    recorded.unlink()
    assert recording.exchanges[7] == EXCHANGES[1]
    assert recording.exchanges[0] is not recording.exchanges[0]  # nothing of it is held
    assert recording.exchanges.ended_ns == max(exchange.ended_ns for exchange in EXCHANGES)


def test_no_file_is_an_empty_recording(tmp_path):
    assert read_recording(tmp_path / "none").exchanges == {}


def test_plan_unpacked_equals_plan_packed():
    plan = LoadPlan(
        host="127.0.0.1",
        port=8000,
        requests=(
            PlannedRequest(0, "/v1/completions", b'{"prompt":"\xc3\xbc"}', at_ns=0),
            PlannedRequest(1, "/x", b"", after=0, think_ns=5),
            PlannedRequest(2, "/x", b"[1]", at_ns=9, part=ConversationPart("ids", 1, 2, continues=True),
                           cancellation=Cancellation(after_ns=3), retry=RetryPolicy(2, 7), answers=4,
                           ends=("stop", "eos_token")),
        ),
        headers=(("Authorization", "Bearer ü"),),
        concurrency=3,
        limits=StreamLimits(idle_ns=1),
        channel=Channel(tls=True, tls_verify=False, tls_ca_file="/ca.pem", proxy=("10.0.0.1", 3128), fresh=True),
        retry_stale=True,
    )
    packed = pack_plan(plan)
    assert SIZE.unpack_from(packed)[0] == len(packed) - SIZE.size
    assert unpack_plan(packed[SIZE.size :]) == plan
