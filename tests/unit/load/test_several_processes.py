"""One plan over several load processes: one schedule, one replay."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load.cores import Cores
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.testing.replaying import replay_scripts
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import STREAM_HEAD, Hang, Send, StreamShape, streamed

MS = 1_000_000
GOOD = streamed(StreamShape().events(), ttft_s=0.05)


def test_open_loop_over_several_processes_keeps_intended_send_times():
    at_ns = tuple(index * 10 * MS for index in range(20))
    with ScriptedServer(GOOD) as server:
        replayed = replay_scripts(server, requests=20, at_ns=at_ns, processes=3)
    replay = replayed.replay
    assert all(record.ok for record in replayed.records)
    assert [e.intended_ns - replay.started_ns for e in replay.exchanges] == list(at_ns)
    assert all(e.sent_ns >= e.intended_ns for e in replay.exchanges)
    assert replay.load.processes == 3


def test_closed_loop_over_several_processes_keeps_concurrency():
    with ScriptedServer(streamed(StreamShape().events(), ttft_s=0.5)) as server:
        replayed = replay_scripts(server, requests=8, concurrency=4, processes=2)
        assert server.connections == 4
    assert all(record.ok for record in replayed.records)
    spans = [(e.sent_ns, e.ended_ns) for e in replayed.replay.exchanges]
    assert max(sum(start <= at < end for start, end in spans) for at, _ in spans) == 4
    assert replayed.replay.load.turnaround_p99_ns > 0
    assert replayed.replay.load.turnaround_total_ns > 0


def test_progress_is_summed_over_load_processes(progress_of):
    requests = tuple(PlannedRequest(i, "/", b"{}", at_ns=0) for i in range(4))
    seen = progress_of(ProcessTransport(processes=2), requests, answer_once_sent=4)
    assert (seen[-1].sent, seen[-1].done, seen[-1].failed) == (4, 4, 0)
    assert any(report.sent == 4 and report.done == 0 for report in seen)


def test_cancel_ends_all_load_processes():
    cancel = threading.Event()

    def hang(number, _):
        if number == 3:
            cancel.set()
        return [Send(STREAM_HEAD), Hang()]

    with ScriptedServer(answer=hang) as server:
        plan = LoadPlan("127.0.0.1", server.port, tuple(PlannedRequest(i, "/", b"{}", at_ns=0) for i in range(4)))
        replay = ProcessTransport(processes=2).replay(plan, cancel=cancel)
    assert {e.ending for e in replay.exchanges} == {Ending.CANCELLED}


def test_death_of_one_load_process_ends_replay_and_keeps_recordings(tmp_path):
    killed = []

    def kill_one(progress):
        if progress.done == 2 and not killed:
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and f"{tmp_path}".encode() in _command(entry):
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed.append(entry.name)
                    return

    def answer(number, _):
        return GOOD if number < 2 else [Send(STREAM_HEAD), Hang()]

    limits = StreamLimits(first_byte_ns=600_000 * MS)  # so long the other one would wait for its answer
    with ScriptedServer(answer=answer) as server:
        requests = tuple(PlannedRequest(i, "/", b"{}", at_ns=0) for i in range(4))
        plan = LoadPlan("127.0.0.1", server.port, requests, limits=limits)
        with pytest.raises(LoadError, match="killed by signal 9"):
            ProcessTransport(folder=tmp_path, processes=2).replay(plan, cancel=threading.Event(), progress=kill_one)
    (recording_folder,) = tmp_path.iterdir()
    assert sorted(entry.name for entry in recording_folder.iterdir()) == ["0", "1"]
    assert all((recording_folder / part / "recording").exists() for part in "01")


def _command(entry):
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_load_processes_use_given_cpus():
    cpu = max(os.sched_getaffinity(0))
    seen = []

    def look(_):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and b"load.worker" in _command(entry):
                with suppress(ProcessLookupError):  # another test's, which ends
                    seen.append((int(entry.name), os.sched_getaffinity(int(entry.name))))

    with ScriptedServer(streamed(StreamShape().events(), ttft_s=0.4)) as server:
        plan = LoadPlan("127.0.0.1", server.port, (PlannedRequest(0, "/", b"{}"),))
        transport = ProcessTransport(cores=Cores((cpu,), (), reserved=True))
        replay = transport.replay(plan, cancel=threading.Event(), progress=look)
    assert frozenset({cpu}) in {frozenset(cpus) for _, cpus in seen}
    assert (replay.load.cpus, replay.load.own_cpus) == ((cpu,), True)
