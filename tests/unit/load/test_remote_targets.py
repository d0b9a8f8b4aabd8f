"""A system without epoll is told so, in a sentence."""

import select
import threading

import pytest

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load.process import ProcessTransport


def test_missing_epoll_is_refused_as_unsupported_system(monkeypatch):
    monkeypatch.delattr(select, "epoll")
    with pytest.raises(LoadError, match="needs Linux"):
        ProcessTransport().replay(None, cancel=threading.Event())
