"""Replays that are watched while they run."""

import threading

import pytest

from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import StreamShape, streamed


@pytest.fixture
def progress_of():
    """All that is told of a replay whose server answers nobody before so many requests were told to be sent."""

    def replay(transport, requests, *, answer_once_sent, concurrency=None):
        progress_reports, enough = [], threading.Event()

        def notify(progress):
            progress_reports.append(progress)
            if progress.sent == answer_once_sent:
                enough.set()

        def answer(_number, _received):
            enough.wait(60)
            return streamed(StreamShape().events())

        with ScriptedServer(answer=answer) as server:
            plan = LoadPlan("127.0.0.1", server.port, requests, concurrency=concurrency)
            transport.replay(plan, cancel=threading.Event(), progress=notify)
        return progress_reports

    return replay
