"""A system without epoll is told so, in a sentence."""

import select
import threading

import pytest

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load.process import ProcessTransport


def test_another_system_than_linux_is_named(monkeypatch):
    monkeypatch.delattr(select, "epoll")
    with pytest.raises(LoadError, match="needs Linux"):
        ProcessTransport().replay(None, cancel=threading.Event())
