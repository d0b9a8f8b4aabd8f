"""A task beside a `with` block."""

import threading

import pytest

from pytest_llmperf.process.background_thread import in_background


def test_end_of_block_ends_thread():
    ended = threading.Event()

    def work(done):
        done.wait()
        ended.set()

    with in_background(work, "test-task"):
        assert not ended.is_set()
    assert ended.is_set()


def test_interrupted_start_ends_thread_without_waiting(monkeypatch):
    """The thread may wait for a lock that the interrupt left locked, so a wait for the thread could last forever."""
    ended, blocked, start = threading.Event(), threading.Event(), threading.Thread.start

    def interrupted_start(thread):
        start(thread)
        raise KeyboardInterrupt

    def work(done):
        done.wait()
        ended.set()
        blocked.wait()

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt), in_background(work, "test-task"):
        pass
    assert ended.wait(5)
    blocked.set()
