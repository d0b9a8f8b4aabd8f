"""A host's time by datagrams."""

import socket
from contextlib import closing

import pytest

from pytest_llmperf.load import host_clock
from pytest_llmperf.load.host_clock import ClockAsker, ClockPort


@pytest.fixture
def patient(monkeypatch):
    """On a busy machine an answer may come after more than 50 ms."""
    monkeypatch.setattr(host_clock, "_PATIENCE_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_question_with_token_is_answered_with_host_time():
    times = iter([700, 800])
    with closing(ClockPort("127.0.0.1", lambda: next(times))) as port, \
            closing(ClockAsker("127.0.0.1", port.port, port.token)) as asker:
        assert (asker.ask(), asker.ask()) == (700, 800)


def test_question_with_another_token_is_not_answered():
    with closing(ClockPort("127.0.0.1", lambda: 700)) as port, \
            closing(ClockAsker("127.0.0.1", port.port, b"x" * 16)) as asker:
        assert asker.ask() is None


@pytest.mark.usefixtures("patient")
def test_malformed_datagram_does_not_end_clock_port():
    with closing(ClockPort("127.0.0.1", lambda: 700)) as port, \
            closing(ClockAsker("127.0.0.1", port.port, port.token)) as asker, \
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"", ("127.0.0.1", port.port))
        stranger.sendto(b"?" * 64, ("127.0.0.1", port.port))
        assert asker.ask() == 700


def test_closed_clock_port_gives_no_time():
    with closing(ClockPort("127.0.0.1", lambda: 700)) as port, \
            closing(ClockAsker("127.0.0.1", port.port, port.token)) as asker:
        port.close()
        assert [asker.ask() for _ in range(9)] == [None] * 9
