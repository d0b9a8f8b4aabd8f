"""One schedule over load hosts with clocks of their own: time namespaces here, and no Ray."""

import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load.host_load import HostLoad
from pytest_llmperf.load.load_hosts import hosted_load
from pytest_llmperf.load.pipe_protocol import pack_plan
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.load.sharding import shards
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import STREAM_HEAD, Hang, Send, StreamShape, streamed
from pytest_llmperf.testing.waiting import until

MS, S = 1_000_000, 1_000_000_000
SERVER = Path(__file__).parents[2] / "stubs" / "host_server.py"
GOOD = streamed(StreamShape().events(), ttft_s=0.05)
APART = ("unshare", "--user", "--map-root-user", "--time", "--fork", "--kill-child")


class PipeHost:
    """A host in a process of its own, whose monotonic clock is ahead of ours."""

    def __init__(self, name, ahead_s):
        self.name = name
        self.calls = Counter()
        clock = [f"--monotonic={ahead_s}", f"--boottime={ahead_s}"]
        command = [*(APART if ahead_s else ()), *(clock if ahead_s else ()), sys.executable, str(SERVER)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __getattr__(self, method):
        return partial(self._call, method)

    def _call(self, method, *arguments):
        self.calls[method] += 1
        try:
            pickle.dump((method, arguments), self.process.stdin)
            self.process.stdin.flush()
            answer = pickle.load(self.process.stdout)
        except (OSError, EOFError, ValueError) as error:
            raise LoadError(f"Load host {self.name} died.") from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture
def host_pair():
    """Two hosts whose clocks are 1,000 s and 70,000 s ahead of ours."""
    if shutil.which("unshare") is None or subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("time namespaces are not permitted here")
    hosts = [PipeHost("10.0.0.1", 1_000), PipeHost("10.0.0.2", 70_000)]
    yield hosts
    for host in hosts:
        host.close()


def transport_on(hosts, processes=1):
    def loading(plan, folder):
        return hosted_load(hosts, shards(plan, processes * len(hosts)), folder, "shared")

    return ProcessTransport(loading=loading)


def plan_of(server, requests, spacing_ns=10 * MS):
    planned = tuple(PlannedRequest(i, "/v1/completions", b"{}", at_ns=i * spacing_ns) for i in range(requests))
    return LoadPlan("127.0.0.1", server.port, planned)


def test_replay_over_two_hosts_keeps_one_schedule_on_our_clock(host_pair):
    begin_ns, told = time.monotonic_ns(), []
    with ScriptedServer(GOOD) as server:
        replay = transport_on(host_pair, processes=2).replay(
            plan_of(server, 40), cancel=threading.Event(), progress=told.append)
    assert {exchange.ending for exchange in replay.exchanges} == {Ending.COMPLETE}
    assert begin_ns < replay.started_ns < replay.ended_ns < time.monotonic_ns()
    error_ns = sum(host.clock_error_ns + abs(host.start_delay_ns) for host in replay.load.hosts)
    assert error_ns < 1 * S  # the clocks are 1,000 s and 70,000 s ahead; each error is a round trip of a busy machine
    for number, exchange in enumerate(replay.exchanges):
        assert abs(exchange.intended_ns - replay.started_ns - number * 10 * MS) <= error_ns
        assert exchange.intended_ns <= exchange.sent_ns < exchange.read_ns[-1] == exchange.ended_ns
    assert replay.load.processes == 4
    assert told[-1].done == 40


def test_host_report_contains_planted_clock_offsets(host_pair):
    with ScriptedServer(GOOD) as server:
        replay = transport_on(host_pair).replay(plan_of(server, 10), cancel=threading.Event())
    first, second = replay.load.hosts
    assert (first.name, first.requests, second.name, second.requests) == ("10.0.0.1", 5, "10.0.0.2", 5)
    for host, ahead_s in ((first, 1_000), (second, 70_000)):
        assert abs(host.clock_offset_ns - ahead_s * S) <= host.clock_error_ns
        assert abs(host.drift_ppm) <= host.drift_error_ppm
    assert replay.load.stamp_error_p99_ns >= max(first.clock_error_ns, second.clock_error_ns)


def test_host_is_asked_a_few_times_a_second_while_requests_end(host_pair):
    """A question over Ray costs several milliseconds of CPU time on this machine and on the node."""
    begun_s = time.monotonic()
    with ScriptedServer(GOOD) as server:
        transport_on(host_pair).replay(plan_of(server, 200), cancel=threading.Event())
    rounds = (time.monotonic() - begun_s) / 0.25
    assert all(host.calls["states"] <= rounds + 2 for host in host_pair)


def test_death_of_host_during_replay_is_error_with_host_name(host_pair):
    def kill_second(progress):
        if progress.done >= 2:
            host_pair[1].process.kill()

    with ScriptedServer(GOOD) as server, pytest.raises(LoadError, match=r"10\.0\.0\.2 died.*of its 100 requests"):
        transport_on(host_pair).replay(plan_of(server, 200), cancel=threading.Event(), progress=kill_second)


def test_cancelled_replay_over_hosts_has_every_request(host_pair):
    cancel = threading.Event()

    def hang(_number, _received):
        cancel.set()
        return [Send(STREAM_HEAD), Hang()]

    with ScriptedServer(answer=hang) as server:
        replay = transport_on(host_pair).replay(plan_of(server, 6, spacing_ns=20 * S), cancel=cancel)
    endings = [exchange.ending for exchange in replay.exchanges]
    assert set(endings) == {Ending.CANCELLED, Ending.NOT_SENT}
    assert len(endings) == 6


class HostWhoseClockIsSet(HostLoad):
    """In this process; `set` moves its clock by 90 ms."""

    name = "10.0.0.3"

    def __init__(self):
        self.ahead_ns = 0
        super().__init__(clock=lambda: time.monotonic_ns() + self.ahead_ns)

    def set(self, progress):
        if progress.done:
            self.ahead_ns = 90 * MS


def test_clock_that_is_set_during_replay_is_error_that_names_host():
    host = HostWhoseClockIsSet()
    with ScriptedServer(GOOD) as server, pytest.raises(LoadError, match=r"clock of load host 10\.0\.0\.3 .*was set"):
        transport_on([host]).replay(plan_of(server, 30, 100 * MS), cancel=threading.Event(), progress=host.set)


def test_host_without_calls_ends_load_processes_and_process():
    ended, sent = threading.Event(), threading.Event()

    def hang(_number, _received):
        sent.set()
        return [Send(STREAM_HEAD), Hang()]

    with ScriptedServer(answer=hang) as server:
        host = HostLoad(silence_limit_s=2.0, end_host=ended.set)
        host.begin([pack_plan(plan_of(server, 1))], "shared")
        until(lambda: host.states([0])[0].ready)
        worker = host._load.workers[0]
        host.start(time.monotonic_ns())
        assert sent.wait(60)
        assert ended.wait(60)
    assert worker._process.returncode is not None
    assert not worker.recording.parents[1].exists()
    with pytest.raises(LoadError, match="runs no load process"):
        host.states([0])


def test_closed_loops_over_hosts_follow_each_other(host_pair):
    with ScriptedServer(GOOD) as server:
        planned = tuple(PlannedRequest(i, "/v1/completions", b"{}") for i in range(6))
        plan = LoadPlan("127.0.0.1", server.port, planned, concurrency=2)
        for _ in range(3):
            replay = transport_on(host_pair).replay(plan, cancel=threading.Event())
            assert {exchange.ending for exchange in replay.exchanges} == {Ending.COMPLETE}
            assert [host.requests for host in replay.load.hosts] == [3, 3]
