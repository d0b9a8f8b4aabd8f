"""Where a load process spends its time: microseconds per event, from the pieces of the product itself."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from our_clients import BODY, PATH

from pytest_llmperf.load.arrivals import ANCILLARY_BYTES, ReadStamps
from pytest_llmperf.load.connection import Connection
from pytest_llmperf.load.connection_setup import Route
from pytest_llmperf.load.cores import raise_priority
from pytest_llmperf.load.reactor import Reactor
from pytest_llmperf.load.recording import RecordingWriter
from pytest_llmperf.load.request_in_flight import Intake, RequestInFlight
from pytest_llmperf.model.plan import PlannedRequest, StreamLimits

SOCKETS, ROUNDS = 200, 50
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"f5\r\n" + b"x" * 245 + b"\r\n"


class Nobody:
    def __init__(self) -> None:
        self.intake = Intake(StreamLimits(replay_bytes=2**62))

    def opened(self, connection: Connection) -> None: ...
    def took(self, request: RequestInFlight, size: int) -> None:
        if self.intake.take(request, size) is not None:
            self.intake.held_bytes = 0

    def forget(self, connection: Connection) -> None: ...
    def finish(self, *_: object) -> None: ...


class Bench:
    """Many connections of ours to plain sockets of this process."""

    def __init__(self) -> None:
        self.arrivals = ReadStamps()
        self.reactor = Reactor(self.arrivals)
        self.connections, self.servers = [], []
        with socket.create_server(("127.0.0.1", 0), backlog=SOCKETS) as listener:
            for _ in range(SOCKETS):
                route = Route(socket.AF_INET, listener.getsockname(), "127.0.0.1")
                connection = Connection(self.reactor, self.arrivals, Nobody(), route)
                self.servers.append(listener.accept()[0])
                self.connections.append(connection)
        for server in self.servers:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._until(lambda: all(connection.usable for connection in self.connections))
        for server, connection in zip(self.servers, self.connections, strict=True):
            connection.request = RequestInFlight(PlannedRequest(0, PATH, BODY), 0, 0)
            server.sendall(HEAD)
        self._until(lambda: all(connection.request.reads for connection in self.connections))

    def _until(self, reached: Callable[[], bool]) -> None:
        def look() -> None:
            if reached():
                self.reactor.stop()
            else:
                self.reactor.call_at(time.monotonic_ns() + 1_000_000, look)

        look_ns = time.monotonic_ns()
        self.reactor.call_at(look_ns, look)
        self.reactor.run()

    def per_event_us(self, step: Callable[[], object], prepare: Callable[[], object] | None = None) -> float:
        """Median over rounds of one step that handles every connection once."""
        times = []
        for _ in range(ROUNDS):
            (prepare or self.say)()
            begun_ns = time.perf_counter_ns()
            step()
            times.append((time.perf_counter_ns() - begun_ns) / SOCKETS / 1000)
        return sorted(times)[len(times) // 2]

    def say(self) -> None:
        for server in self.servers:
            server.send(EVENT)

    def drain(self) -> None:
        for server in self.servers:
            server.recv(65536)

    def receive_only(self) -> None:
        for connection in self.connections:
            connection._recvmsg(65536, ANCILLARY_BYTES)

    def handle(self) -> None:
        for connection in self.connections:
            connection._ready()

    def turn(self) -> None:
        left = SOCKETS
        while left:
            events = self.reactor._poll(0)
            self.arrivals.synchronise()
            for fd, _ in events:
                self.reactor._handlers[fd]()
            left -= len(events)


def costs() -> dict[str, float]:
    """Microseconds per event, or per request, by piece."""
    gc.disable()
    bench = Bench()
    payload = b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\n\r\n" + BODY
    requests = [connection.request for connection in bench.connections]

    def send() -> None:
        for connection, request in zip(bench.connections, requests, strict=True):
            connection.send(request, payload)

    receive = bench.per_event_us(bench.receive_only)
    handle = bench.per_event_us(bench.handle)
    turn = bench.per_event_us(bench.turn)
    sending = bench.per_event_us(send, prepare=lambda: None)
    with tempfile.TemporaryDirectory() as name:
        writer = RecordingWriter(Path(name) / "recording")
        recording = bench.per_event_us(
            lambda: [writer.exchange(request.exchange()) for request in requests], prepare=lambda: None
        )
    return {
        "receiving: recvmsg, kernel included": receive,
        "stamping, keeping, looking for the end": handle - receive,
        "epoll, clocks, dispatch": max(0.0, turn - handle),
        "all of one event": turn,
        "sending one request, the kernel's delivery included": sending,
        "recording one finished request": recording,
    }


def costs_apart() -> dict[str, float]:
    """The same from a process of its own, scheduled as load processes are."""
    done = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    raise_priority(sorted(os.sched_getaffinity(0))[:1])
    print(json.dumps(costs(), indent=1, ensure_ascii=False))
