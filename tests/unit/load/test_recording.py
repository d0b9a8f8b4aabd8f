"""The file that the load process leaves, whole or torn."""

from array import array

import pytest

from pytest_llmperf.load.handover import SIZE, pack_plan, unpack_plan
from pytest_llmperf.load.recording import RecordingWriter, read_recording
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.testing.scripted_transport import make_exchange

EXCHANGES = [
    make_exchange([(1 << 40, b"abc"), ((1 << 40) + 5, b"\x00\xff")], index=0, intended_ns=-3, sent_ns=0, reused=True),
    make_exchange([], index=7, sent_ns=None, ending=Ending.CONNECT_FAILED, error="refused: ü"),
]


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "recording"
    writer = RecordingWriter(path)
    writer.start(11)
    writer.exchange(EXCHANGES[0])
    writer.lag(array("q", [1, 2]))
    writer.exchange(EXCHANGES[1])
    writer.lag(array("q", [3]))
    writer.end(12, 13, 14)
    return path


def test_round_trip(recorded):
    recording = read_recording(recorded)
    assert recording.started_ns == 11
    assert recording.exchanges == {0: EXCHANGES[0], 7: EXCHANGES[1]}
    assert list(recording.loop_lag_ns) == [1, 2, 3]
    assert recording.end == (12, 13, 14)


def test_every_ending_survives(tmp_path):
    writer = RecordingWriter(tmp_path / "r")
    made = [make_exchange([], index=index, ending=ending) for index, ending in enumerate(Ending)]
    for exchange in made:
        writer.exchange(exchange)
    writer.end(0, 0, 0)
    assert list(read_recording(tmp_path / "r").exchanges.values()) == made


def test_torn_anywhere_it_reads_what_is_whole(recorded):
    whole = recorded.read_bytes()
    counts = []
    for size in range(len(whole)):
        recorded.write_bytes(whole[:size])
        recording = read_recording(recorded)
        assert recording.end is None
        counts.append(len(recording.exchanges))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}


def test_no_file_is_an_empty_recording(tmp_path):
    assert read_recording(tmp_path / "none").exchanges == {}


def test_plan_round_trip():
    plan = LoadPlan(
        host="127.0.0.1",
        port=8000,
        requests=(
            PlannedRequest(0, "/v1/completions", b'{"prompt":"\xc3\xbc"}', at_ns=0),
            PlannedRequest(1, "/x", b"", after=0, think_ns=5),
        ),
        headers=(("Authorization", "Bearer ü"),),
        concurrency=3,
        limits=StreamLimits(idle_ns=1),
        retry_stale=True,
    )
    packed = pack_plan(plan)
    assert SIZE.unpack_from(packed)[0] == len(packed) - SIZE.size
    assert unpack_plan(packed[SIZE.size :]) == plan
