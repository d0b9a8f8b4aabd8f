"""Servers, connections and machines that misbehave under load: faults 17, 23, 24, 34, 35, 39, 40, 41 and 48."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.testing.replaying import replay_scripts
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import STREAM_HEAD, Close, Hang, Send, StreamShape, plain, streamed
from pytest_llmperf.testing.waiting import until

MS = 1_000_000
EVENTS = StreamShape().events()
GOOD = streamed(EVENTS)


def worker_pids():
    """Load processes that this process started."""
    collected = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == os.getpid() and b"pytest_llmperf.load.worker" in command:
            collected.append(int(entry.name))
    return collected


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_localhost_is_resolved_to_ipv4():
    """Fault 17: the server listens on 127.0.0.1 only, whatever else the name means here."""
    with ScriptedServer(GOOD) as server:
        assert replay_scripts(server, host="localhost").record.ok


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    """Fault 23."""
    with ScriptedServer(plain(502)) as proxy, ScriptedServer(GOOD) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert replay_scripts(server).record.ok
        assert proxy.requests == []


def test_each_request_after_server_death_is_refused():
    """Fault 24: without a listener every further request is refused at once, and each is reported."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    closed_ns = []

    def die_on_the_first():
        first, _ = listener.accept()
        first.recv(65536)
        listener.close()
        closed_ns.append(time.monotonic_ns())
        first.close()

    thread = threading.Thread(target=die_on_the_first)
    thread.start()
    requests = tuple(PlannedRequest(i, "/", b"{}", at_ns=i * 300 * MS) for i in range(10))
    replay = ProcessTransport().replay(LoadPlan("127.0.0.1", port, requests), cancel=threading.Event())
    thread.join()
    ahead_ns = 200 * MS  # the connection of a request that is due sooner may have been opened before
    after = [exchange for exchange in replay.exchanges if exchange.intended_ns > closed_ns[0] + ahead_ns]
    assert {exchange.ending for exchange in after} == {Ending.CONNECT_FAILED}
    assert "refused" in (after[0].error or "").lower()
    assert min(exchange.ended_ns - exchange.intended_ns for exchange in after) < 1000 * MS


def test_server_that_never_accepts_is_a_connect_timeout():
    """Fault 36: a full backlog leaves a connection half open."""
    with socket.socket() as listener, socket.socket() as item, socket.socket() as two:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (item, two):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        plan = LoadPlan(
            "127.0.0.1",
            listener.getsockname()[1],
            (PlannedRequest(0, "/", b"{}"),),
            limits=StreamLimits(connect_ns=300 * MS),
        )
        replay = ProcessTransport().replay(plan, cancel=threading.Event())
    assert replay.exchanges[0].ending is Ending.CONNECT_TIMEOUT
    assert replay.exchanges[0].sent_ns is None


def test_429_is_counted_once_and_never_retried():
    """Fault 34."""
    with ScriptedServer(plain(429, b"slow down", retry_after="3"), GOOD) as server:
        replayed = replay_scripts(server, requests=2)
        assert len(server.requests) == 2
    limited, after = replayed.records
    assert limited.outcome is Outcome.RATE_LIMITED
    assert "429" in limited.detail
    assert "Retry-After: 3" in limited.detail
    assert limited.arrivals_ns == ()
    assert after.ok


@pytest.mark.parametrize("status", [500, 503])
def test_burst_of_server_errors_makes_failed_requests_without_arrivals(status):
    """Fault 35: failures bring no latency."""
    with ScriptedServer(GOOD, plain(status, b"no"), plain(status, b"no"), GOOD) as server:
        records = replay_scripts(server, requests=4).records
    assert [r.outcome for r in records] == [Outcome.OK, Outcome.HTTP_STATUS, Outcome.HTTP_STATUS, Outcome.OK]
    assert records[1].detail == f"HTTP {status}: b'no'"
    assert records[1].arrivals_ns == ()


def closes_the_second_request_of_a_connection():
    served = set()

    def answer(_, received):
        if received.connection in served:
            return [Close()]
        served.add(received.connection)
        return GOOD

    return answer


def test_request_on_a_dead_connection_is_a_client_event():
    """Fault 39."""
    with ScriptedServer(answer=closes_the_second_request_of_a_connection()) as server:
        replayed = replay_scripts(server, requests=3)
    assert [r.outcome for r in replayed.records] == [Outcome.OK, Outcome.STALE, Outcome.OK]
    assert replayed.replay.exchanges[1].reused


def test_request_on_closed_connection_is_retried_if_requested():
    """Fault 39."""
    with ScriptedServer(answer=closes_the_second_request_of_a_connection()) as server:
        replayed = replay_scripts(server, requests=3, retry_stale=True)
        assert len(server.requests) == 5
    assert all(r.ok for r in replayed.records)
    assert not replayed.replay.exchanges[1].reused


def test_request_is_not_retried_after_first_byte():
    """Fault 39."""
    served = []

    def answer(number, _):
        served.append(number)
        return GOOD if number == 0 else [Send(STREAM_HEAD[:10]), Close()]

    with ScriptedServer(answer=answer) as server:
        replayed = replay_scripts(server, requests=2, retry_stale=True)
    assert replayed.records[1].outcome is Outcome.TRUNCATED
    assert served == [0, 1]


def test_connection_closed_while_idle_is_not_used():
    """Fault 39: a server that closes after its answer costs a new connection, and no failure."""
    with ScriptedServer([*GOOD, Close()]) as server:
        replayed = replay_scripts(server, requests=3, at_ns=(0, 200 * MS, 400 * MS))
    assert all(r.ok for r in replayed.records)
    assert not any(e.reused for e in replayed.replay.exchanges)


def test_stopped_load_process_raises_lag_and_send_delay():
    """Faults 40 and 48: whatever stops the loop, a hog, a suspended machine or SIGSTOP, it leaves the same trace."""

    stopped = []

    def stop_the_worker_once(progress):
        if progress.done >= 3 and not stopped:
            assert progress.done < 100
            stopped.extend(worker_pids())
            os.kill(stopped[0], signal.SIGSTOP)
            until(lambda: state_of(stopped[0]) == "T")
            time.sleep(0.6)
            assert state_of(stopped[0]) == "T"
            os.kill(stopped[0], signal.SIGCONT)

    with ScriptedServer(GOOD) as server:
        requests = tuple(PlannedRequest(i, "/", b"{}", at_ns=i * 50 * MS) for i in range(100))
        plan = LoadPlan("127.0.0.1", server.port, requests)
        replay = ProcessTransport().replay(plan, cancel=threading.Event(), progress=stop_the_worker_once)
    assert len(stopped) == 1
    assert replay.clock_gap_ns > 500 * MS
    assert max(replay.loop_lag_ns) > 500 * MS
    assert max(e.sent_ns - e.intended_ns for e in replay.exchanges) > 400 * MS
    assert {e.ending for e in replay.exchanges} == {Ending.COMPLETE}  # sent late, none dropped


def test_stall_shows_in_every_request_that_was_due_meanwhile():
    """Fault 41: latency from the intended time keeps what a closed loop would leave out."""
    stalled_since, stalled_until = [], []

    def answer(number, _):
        now = time.monotonic()
        if number == 3:
            stalled_since.append(now)
            stalled_until.append(now + 1.0)
        wait = max(0.0, stalled_until[0] - now) if stalled_until else 0.0
        return streamed(EVENTS, ttft_s=wait)

    with ScriptedServer(answer=answer) as server:
        replayed = replay_scripts(server, requests=12, at_ns=tuple(i * 100 * MS for i in range(12)))
    stall_end_ns = round(stalled_until[0] * 1e9)
    stall_begin_ns = round(stalled_since[0] * 1e9)
    during = [r for r in replayed.records if r.sent_ns > stall_begin_ns and r.intended_ns < stall_end_ns - 50 * MS]
    assert all(r.ok for r in replayed.records)
    assert all(r.arrivals_ns[0] >= stall_end_ns for r in during)
    assert sum(r.sent_ns < stall_end_ns for r in during) >= 3  # none waited for the stalled answer


PARENT = """
import sys, threading
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
plan = LoadPlan("127.0.0.1", int(sys.argv[1]), (PlannedRequest(0, "/", b"{}"),))
ProcessTransport(folder=sys.argv[2]).replay(plan, cancel=threading.Event())
"""


def test_load_process_ends_with_parent(tmp_path):
    """Fault 4, for the load process: its control pipe closes, however the parent ended."""
    with ScriptedServer([Send(STREAM_HEAD), Hang()]) as server:
        parent = subprocess.Popen([sys.executable, "-c", PARENT, str(server.port), str(tmp_path)])
        until(lambda: server.requests)
        (recording,) = tmp_path.glob("*/0/recording")
        assert is_open_somewhere(recording)
        parent.kill()
        parent.wait()
        until(lambda: not is_open_somewhere(recording))


def is_open_somewhere(path):
    """Whether a process has this path on its command line."""
    needle = str(path).encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and needle in (entry / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False
