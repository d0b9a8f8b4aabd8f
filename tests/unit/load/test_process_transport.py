"""The load process over real sockets: connections, order, times, cancelling, dying."""

import os
import signal
import socket
import threading
from pathlib import Path
from statistics import median

import pytest

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load import load_processes
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.testing.replaying import replay_scripts
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import (
    LAST_CHUNK,
    STREAM_HEAD,
    Close,
    Hang,
    Send,
    StreamShape,
    http_chunk,
    plain,
    streamed,
)

GOOD = streamed(StreamShape().events())
MS = 1_000_000


def test_load_process_sends_planned_requests():
    body = b'{"prompt":"' + b"x" * 3_000_000 + b'"}'  # more than a socket takes at once
    with ScriptedServer(GOOD) as server:
        requests = (PlannedRequest(0, "/v1/completions", body), PlannedRequest(1, "/v1/chat/completions", b"{}"))
        plan = LoadPlan("127.0.0.1", server.port, requests, headers=(("Authorization", "Bearer k"),), concurrency=1)
        ProcessTransport().replay(plan, cancel=threading.Event())
    first, second = server.requests
    assert first.body == body
    assert first.head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"\r\nHost: 127.0.0.1:%d\r\n" % server.port in first.head
    assert b"\r\nAuthorization: Bearer k\r\n" in first.head
    assert second.head.startswith(b"POST /v1/chat/completions ")


def test_load_process_that_reads_no_plan_is_an_error(monkeypatch):
    monkeypatch.setattr(load_processes, "_BOOT", "import time; time.sleep(600)")
    monkeypatch.setattr(load_processes, "_SILENCE_LIMIT_S", 0.3)
    request = PlannedRequest(0, "/v1/completions", b"x" * 3_000_000)  # more than a pipe takes at once
    plan = LoadPlan("127.0.0.1", 1, (request,), headers=(), concurrency=1)
    with pytest.raises(LoadError, match=r"has read nothing of its plan for 0.3 s.*Run the test again"):
        ProcessTransport().replay(plan, cancel=threading.Event())


def test_load_process_reuses_connection():
    with ScriptedServer(GOOD) as server:
        replayed = replay_scripts(server, requests=5)
    assert all(r.ok for r in replayed.records)
    assert {r.connection for r in server.requests} == {0}
    assert [e.reused for e in replayed.replay.exchanges] == [False, True, True, True, True]


def test_connection_close_is_honoured():
    with ScriptedServer([*plain(200, b"x", connection="close"), Close()]) as server:
        replayed = replay_scripts(server, requests=3)
    assert len({r.connection for r in server.requests}) == 3
    assert {e.ending for e in replayed.replay.exchanges} == {Ending.COMPLETE}


def test_closed_loop_keeps_the_concurrency():
    with ScriptedServer(streamed(StreamShape().events(), ttft_s=0.5)) as server:
        replayed = replay_scripts(server, requests=6, concurrency=3)
    spans = [(e.sent_ns, e.ended_ns) for e in replayed.replay.exchanges]
    together = [sum(start <= at < end for start, end in spans) for at, _ in spans]
    assert max(together) == 3
    assert server.connections == 3


def test_open_loop_sends_on_time_over_connections_opened_ahead():
    with ScriptedServer(streamed(StreamShape().events(), ttft_s=0.2)) as server:
        replay = replay_scripts(server, requests=20, at_ns=tuple(i * 7 * MS for i in range(20))).replay
    assert [e.intended_ns - replay.started_ns for e in replay.exchanges] == [i * 7 * MS for i in range(20)]
    late_ns = [e.sent_ns - e.intended_ns for e in replay.exchanges]
    assert min(late_ns) >= 0
    # Beside what a busy machine delays the loop itself. Benchmarks measure the real figure.
    assert median(late_ns) < 5 * MS + max(replay.loop_lag_ns)


def test_next_turn_starts_after_previous_turn_and_think_time():
    with ScriptedServer(streamed(StreamShape().events(), ttft_s=0.02)) as server:
        requests = (PlannedRequest(0, "/", b"{}", at_ns=0), PlannedRequest(1, "/", b"{}", after=0, think_ns=30 * MS))
        replay = ProcessTransport().replay(
            LoadPlan("127.0.0.1", server.port, requests), cancel=threading.Event()
        )
    first, second = replay.exchanges
    assert second.intended_ns == first.ended_ns + 30 * MS
    assert second.sent_ns >= second.intended_ns


def test_heartbeat_and_cpu_time_are_reported():
    with ScriptedServer(streamed(StreamShape().events(), ttft_s=0.3)) as server:
        replay = replay_scripts(server).replay
    assert sum(50 * MS + lag_ns for lag_ns in replay.loop_lag_ns) > 0.8 * (replay.ended_ns - replay.started_ns)
    assert min(replay.loop_lag_ns) < 50 * MS  # lateness, without the pause between two beats
    assert replay.cpu_ns > 0
    assert replay.started_ns < replay.ended_ns


def test_progress_is_reported_during_replay(progress_of):
    requests = tuple(PlannedRequest(i, "/", b"{}") for i in range(3))
    seen = progress_of(ProcessTransport(), requests, answer_once_sent=2, concurrency=2)
    assert any((progress.sent, progress.done) == (2, 0) for progress in seen)
    assert (seen[-1].sent, seen[-1].done, seen[-1].failed) == (3, 3, 0)


def test_an_empty_plan_ends_at_once():
    assert ProcessTransport().replay(LoadPlan("127.0.0.1", 1, ()), cancel=threading.Event()).exchanges[:] == []


def test_answer_before_the_request_was_read_ends_the_connection():
    """What is left of a request must not run into the next one."""
    listener = socket.create_server(("127.0.0.1", 0))
    heads = []

    def answer_early():
        for _ in range(2):
            connection, _ = listener.accept()
            heads.append(connection.recv(64))
            connection.sendall(b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n")
            accepted.append(connection)

    accepted: list[socket.socket] = []
    thread = threading.Thread(target=answer_early)
    thread.start()
    requests = tuple(PlannedRequest(i, "/", b"x" * 30_000_000) for i in range(2))
    plan = LoadPlan("127.0.0.1", listener.getsockname()[1], requests, concurrency=1)
    replay = ProcessTransport().replay(plan, cancel=threading.Event())
    thread.join()
    for opened in (listener, *accepted):
        opened.close()
    assert [e.ending for e in replay.exchanges] == [Ending.COMPLETE] * 2
    assert [head[:6] for head in heads] == [b"POST /"] * 2


@pytest.mark.parametrize(
    "last",
    [
        [b"0\r\n", b"\r\n"],
        [b"0\r\nTrailer: t\r\n\r\n"],
        [b"0", b"\r", b"\n", b"\r", b"\n"],
        [LAST_CHUNK + b"\r\n"],  # found by looking again: what follows the end hides it
    ],
)
def test_unusual_last_chunk_ends_answer(last):
    events = [Send(STREAM_HEAD), *(Send(http_chunk(e)) for e in StreamShape().events())]
    with ScriptedServer([*events, *(Send(part, 0.02) for part in last)]) as server:
        replayed = replay_scripts(server, requests=2)
    assert all(r.ok for r in replayed.records)
    assert server.connections == 1


def test_sse_comment_with_bytes_of_last_http_chunk_does_not_end_stream():
    first, *rest = StreamShape().events()
    script = [Send(STREAM_HEAD), Send(http_chunk(first)), Send(http_chunk(b": 0\r\n\r\n")[:-2]), Send(b"\r\n", 0.05)]
    script += [Send(http_chunk(e)) for e in rest] + [Send(LAST_CHUNK)]
    with ScriptedServer(script) as server:
        assert replay_scripts(server).record.ok


def hanging(cancel, on_request, *, every_ns=0):
    """A replay of four requests whose answers never end."""

    def answer(_number, _received):
        on_request()
        return [Send(STREAM_HEAD), Hang()]

    with ScriptedServer(answer=answer) as server:
        planned = tuple(PlannedRequest(i, "/", b"{}", at_ns=i * every_ns) for i in range(4))
        return ProcessTransport().replay(LoadPlan("127.0.0.1", server.port, planned), cancel=cancel)


def test_cancel_ends_running_and_unsent_requests_before_last_send_time():
    cancel = threading.Event()
    replay = hanging(cancel, cancel.set, every_ns=600_000 * MS)
    assert [e.ending for e in replay.exchanges] == [Ending.CANCELLED] + [Ending.NOT_SENT] * 3


def test_cancel_before_start_leaves_all_requests_unsent_or_cancelled():
    cancel = threading.Event()
    cancel.set()
    replay = hanging(cancel, lambda: None)
    assert {e.ending for e in replay.exchanges} <= {Ending.CANCELLED, Ending.NOT_SENT}
    assert len(replay.exchanges) == 4


def test_impossible_plans_are_refused():
    plan = LoadPlan("127.0.0.1", 1, (PlannedRequest(0, "/", b"", after=0),))
    with pytest.raises(LoadError, match="waits for request 0"):
        ProcessTransport().replay(plan, cancel=threading.Event())


def test_a_host_without_address_is_an_error_of_the_load(tmp_path):
    plan = LoadPlan("no-such-host.invalid", 1, (PlannedRequest(0, "/", b""),))
    with pytest.raises(LoadError, match=r"cannot resolve 'no-such-host\.invalid'"):
        ProcessTransport(folder=tmp_path).replay(plan, cancel=threading.Event())


def test_recordings_are_removed_after_success(tmp_path):
    with ScriptedServer(GOOD) as server:
        plan = LoadPlan("127.0.0.1", server.port, (PlannedRequest(0, "/", b"{}"),))
        ProcessTransport(folder=tmp_path).replay(plan, cancel=threading.Event())
    assert list(tmp_path.iterdir()) == []


def test_an_exception_in_the_progress_callback_ends_the_worker(tmp_path):
    def interrupted(_):
        raise KeyboardInterrupt

    with ScriptedServer([Send(STREAM_HEAD), Hang()]) as server:
        plan = LoadPlan("127.0.0.1", server.port, (PlannedRequest(0, "/", b"{}"),))
        with pytest.raises(KeyboardInterrupt):
            ProcessTransport(folder=tmp_path).replay(plan, cancel=threading.Event(), progress=interrupted)
    assert children_of(os.getpid(), b"pytest_llmperf.load.worker") == []
    assert list(tmp_path.iterdir()) == []


def children_of(pid, needle):
    """Direct children whose command line holds `needle`."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and needle in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


def test_hanging_load_process_is_ended_and_reported(tmp_path):
    cancel = threading.Event()

    def stop(progress):
        if progress.done:
            for pid in children_of(os.getpid(), str(tmp_path).encode()):
                os.kill(pid, signal.SIGSTOP)
            cancel.set()

    with ScriptedServer(answer=lambda number, _: GOOD if not number else [Send(STREAM_HEAD), Hang()]) as server:
        plan = LoadPlan("127.0.0.1", server.port, tuple(PlannedRequest(i, "/", b"{}") for i in range(3)), concurrency=1)
        with pytest.raises(LoadError, match="the load process hung and was ended after 1 of 3 requests"):
            ProcessTransport(folder=tmp_path).replay(plan, cancel=cancel, progress=stop)


def test_peak_memory_excludes_memory_of_parent():
    """The kernel hands the peak of whoever starts a program on to it."""
    ours = b"x" * (256 << 20)
    with ScriptedServer(answer=lambda *_: GOOD) as server:
        plan = LoadPlan("127.0.0.1", server.port, (PlannedRequest(0, "/", b"{}"),), concurrency=1)
        load = ProcessTransport().replay(plan, cancel=threading.Event()).load
    assert 1 << 20 < load.peak_memory_bytes < len(ours) // 2


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "of an endpoint"])
def test_killed_load_process_is_an_error_with_recording_folder(tmp_path, kept):
    def kill(progress):
        if progress.done == 2:
            for pid in children_of(os.getpid(), str(tmp_path).encode()):
                os.kill(pid, signal.SIGKILL)

    def answer(number, _):
        return GOOD if number < 2 else [Send(STREAM_HEAD), Hang()]

    with ScriptedServer(answer=answer) as server:
        requests = tuple(PlannedRequest(i, "/", b"{}") for i in range(3))
        plan = LoadPlan("127.0.0.1", server.port, requests, concurrency=1, keeps_failed_recording=kept)
        with pytest.raises(LoadError, match="killed by signal 9 after 2 of 3 requests") as caught:
            ProcessTransport(folder=tmp_path).replay(plan, cancel=threading.Event(), progress=kill)
    if not kept:
        assert not list(tmp_path.iterdir())
        assert str(tmp_path) not in str(caught.value)
        return
    (recording_folder,) = tmp_path.iterdir()
    assert str(recording_folder) in str(caught.value)
