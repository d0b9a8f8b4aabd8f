"""One replay on a loop of ours: what the heartbeat sees."""

import socket
import time
from time import monotonic_ns

from pytest_llmperf.load.connection_setup import route_of
from pytest_llmperf.load.pipe_protocol import PROGRESS, READY
from pytest_llmperf.load.recording import RecordingWriter, read_recording
from pytest_llmperf.load.replayer import PlanReplayer
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import StreamShape, streamed


def test_pause_during_report_appears_in_loop_lag(tmp_path):
    """Fault 48: a process may be stopped at any moment, also while it reports."""
    reports = []

    def report(progress):
        if progress == READY:
            replayer.start(monotonic_ns())
            return
        reports.append(PROGRESS.unpack(progress))
        if len(reports) == 1:
            time.sleep(0.15)

    with ScriptedServer(streamed(StreamShape().events(), ttft_s=0.5)) as server:
        plan = LoadPlan("127.0.0.1", server.port, (PlannedRequest(0, "/", b"{}"),))
        replayer = PlanReplayer(plan, route_of(plan), RecordingWriter(tmp_path / "recording"), report)
        replayer.run()
    recording = read_recording(tmp_path / "recording")
    assert max(recording.loop_lag_ns) > 80_000_000
    assert recording.end.clock_gap_ns > 80_000_000
    assert reports[-1][:3] == (1, 1, 0)


def test_reports_count_reads_of_an_answer_in_flight(tmp_path):
    reports = []

    def report(progress):
        if progress == READY:
            replayer.start(monotonic_ns())
        else:
            reports.append(PROGRESS.unpack(progress))

    with ScriptedServer(streamed(StreamShape((1,) * 8).events(), ttft_s=0.1, itl_s=0.1)) as server:
        plan = LoadPlan("127.0.0.1", server.port, (PlannedRequest(0, "/", b"{}"),))
        replayer = PlanReplayer(plan, route_of(plan), RecordingWriter(tmp_path / "recording"), report)
        replayer.run()
    reads = [report[4] for report in reports]
    assert any(0 < read < reads[-1] for read in reads)
    assert reads[-1] == len(read_recording(tmp_path / "recording").exchanges[0].read_ns)


def test_closed_loop_of_many_streams_opens_all_connections_before_the_clock_starts(tmp_path):
    streams, opened = 1100, []

    def report(progress):
        if progress == READY:
            opened.append(len(replayer._client._idle))
            replayer.cancel()

    with socket.create_server(("127.0.0.1", 0), backlog=streams) as server:
        port = server.getsockname()[1]
        requests = tuple(PlannedRequest(index, "/", b"{}") for index in range(streams))
        plan = LoadPlan("127.0.0.1", port, requests, concurrency=streams)
        replayer = PlanReplayer(plan, route_of(plan), RecordingWriter(tmp_path / "recording"), report)
        replayer.run()
    assert opened == [streams]
