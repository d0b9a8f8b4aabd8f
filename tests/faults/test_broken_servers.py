"""Servers that answer every request and are no evidence: another model, invented counts, a warm cache, early garbage.

Each is a real server on loopback that shows no counters, measured as an endpoint through the whole session.
"""

import json
import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from pytest_llmperf import Verdict, closed, endpoint, random_tokens
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import Hardware
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import DONE, StreamShape, event, plain, streamed

TOKENS = 16
WORKLOAD = random_tokens(input=8, output=TOKENS, arrivals=closed(2), requests=12)
COUNTED = StreamShape((1,) * TOKENS, model="m")
UNCOUNTED = StreamShape((1,) * TOKENS, continuous_usage=False, model="m")


@dataclass
class Broken:
    """Routes of a server whose streams a function of the request body writes."""

    stream: object
    bodies: list = field(default_factory=list)

    def __call__(self, _number, received):
        path = received.head.split(b" ")[1].decode()
        if path == "/v1/models":
            return plain(200, json.dumps({"data": [{"id": "m"}]}).encode())
        if path != "/v1/completions":
            return plain(404)
        self.bodies.append(json.loads(received.body))
        return self.stream(self.bodies[-1])


@contextmanager
def serving(stream):
    """A server that answers each request body with the script that `stream` gives for it."""
    broken = Broken(stream)
    with ScriptedServer(answer=broken) as server:
        broken.url = f"http://127.0.0.1:{server.port}"
        yield broken


def sending(events, **timing):
    """Always the same events; warm-up requests, which ask for as many tokens, too."""
    return lambda _body: streamed(events, **timing)


@pytest.fixture
def new_session(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of the machine of its own
    made = []

    def new():
        settings = Settings(send_delay_p99_limit_ms=5000.0, stamp_error_p99_limit_ms=5000.0,
                            clock_gap_limit_ms=60_000.0, coalesced_limit=1.0)  # not the subject here
        made.append(PerfSession(settings, tmp_path, Hardware(), lambda _status: None, rng=random.Random()))
        return made[-1]

    yield new
    for session in made:
        session.close()


def checked(session, broken, *slos, **options):
    """Verdict and reason of each check."""
    perf = session.perf("test", "cpu")
    run = perf.measure(endpoint(broken.url, model="m", **options), WORKLOAD, runs=2)
    return perf.check(run, *slos)


def only_after_warm_up(bad, good, requests=12):
    """A server that is sound until `requests` were answered."""
    answered = iter(range(10**6))

    def stream(_body):
        return streamed(bad if next(answered) >= requests else good, itl_s=0.001)

    return stream
