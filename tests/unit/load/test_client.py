"""Connections that are opened ahead, over real sockets and with an event loop that runs when told to."""

import socket

import pytest

from pytest_llmperf.load import client as module
from pytest_llmperf.load.arrivals import ReadStamps
from pytest_llmperf.load.client import Client
from pytest_llmperf.load.connection_setup import route_of
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest


class ByHand:
    def __init__(self):
        self.handlers = {}
        self.watched = []

    def watch(self, fd, handler, events=1):
        if fd not in self.handlers:
            self.watched.append(fd)
        self.handlers[fd] = handler

    def forget(self, fd):
        del self.handlers[fd]

    def run(self):
        for handler in list(self.handlers.values()):
            handler()


@pytest.fixture
def loop():
    return ByHand()


@pytest.fixture
def client(loop, monkeypatch):
    monkeypatch.setattr(module, "_LOST_NS", 60_000_000_000)  # however long a busy machine takes between two lines
    monkeypatch.setattr(module, "_REUSE_NS", 60_000_000_000)
    arrivals = ReadStamps()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        requests = tuple(PlannedRequest(index, "/", b"{}") for index in range(3))
        plan = LoadPlan("127.0.0.1", listener.getsockname()[1], requests)
        made = Client(loop, arrivals, plan, route_of(plan), lambda request: None)
        made.requests = requests
        yield made
        made.cancel()
    arrivals.close()


def test_due_request_uses_connection_that_is_still_opening(client, loop):
    client.warm(2)
    for request in client.requests:
        client.send(request, 0)
    assert len(loop.watched) == 3
    assert not client.warming
    loop.run()
    assert client.sent == 3


def test_missing_connections_are_opened_in_equal_parts(client, loop):
    """Many at once would delay a request that is due."""
    missing = [client.warm(8, times) for times in (4, 3, 2, 1)]
    assert missing == [6, 4, 2, 0]
    assert len(loop.watched) == 8


def test_connections_too_old_to_be_used_are_replaced(client, loop, monkeypatch):
    client.warm(1)
    loop.run()
    client.warm(1)
    assert len(loop.watched) == 1
    monkeypatch.setattr(module, "_REUSE_NS", 0)
    client.warm(1)
    assert client.warming
    assert len(loop.handlers) == 1


def test_connection_that_does_not_open_is_replaced(client, loop, monkeypatch):
    """A lost SYN is repeated after a second, which is not the server's."""
    client.warm(1)
    (lost,) = loop.watched
    monkeypatch.setattr(module, "_LOST_NS", 0)
    client.send(client.requests[0], 0)
    (other,) = loop.handlers.keys() - {lost}
    loop.handlers[other]()
    assert client.sent == 1
    assert client.warming


def test_first_open_connection_sends_longest_waiting_request(client, loop):
    client.warm(3)
    lost, *others = loop.watched
    client.send(client.requests[0], 0)
    client.send(client.requests[1], 0)
    loop.handlers[others[1]]()
    assert client.sent == 1
    loop.handlers[others[0]]()
    assert client.sent == 2
    loop.handlers[lost]()  # late: it serves the next
    client.send(client.requests[2], 0)
    assert (client.sent, len(loop.watched)) == (3, 3)
