"""A fake inference server for tests without sockets, and measurements made of records."""

import json
import os
from pathlib import Path

import httpx
import pytest

from pytest_llmperf.engines.adapters import reader_of
from pytest_llmperf.engines.control.contact import Contact
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.process.unit import Unit
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import Evidence
from pytest_llmperf.metrics import measure
from pytest_llmperf.model.plan import Channel
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.testing.records import make_record
from pytest_llmperf.testing.scripted_transport import ScriptedTransport, stream_exchange
from pytest_llmperf.testing.streams import StreamShape

MS = 1_000_000
SOUND = {"generation_tokens": 200.0, "requests_finished": 20.0, "prompt_tokens": 160.0, "prompt_tokens_cached": 0.0}


class FakeProcess:
    """What `Server` and `Replayer` use of a supervised process."""

    def __init__(self):
        self.ended = None
        self.stopped = 0
        self.on_gone = lambda _callback: None

    def ending(self):
        return self.ended

    def pids(self):
        return (id(self),)

    def wait_exit(self, timeout_s=None):
        return self.ended

    def evidence(self, n_lines=200):
        return Evidence("fake serve", self.ended or "running", 1.0)

    def stop(self, grace_s=None):
        self.stopped += 1
        self.ended = self.ended or "signal 15 (SIGTERM)"


class FakeEngine:
    """Counts what it is sent. `answers` replaces a path's answer: a Response, a function of the request, or an
    exception to raise."""

    def __init__(self):
        self.answers = {}
        self.paths, self.queries = [], []
        self.finished = self.prompt = self.generated = self.preemptions = 0
        self.tokens = None  # of each answer; None: as many as were asked for
        self.ttft_ms = 50.0
        self.counts_per_chunk = True
        self.on_replay = lambda: None  # called when a replay begins
        self.transport = ScriptedTransport(self.exchanges)

    def answer(self, request):
        path = request.url.path
        self.paths.append(path)
        self.queries.append((path, dict(request.url.params)))
        response = self.answers.get(path, self.routes().get(path, httpx.Response(404)))
        if path not in self.answers and b'"stream":true' in request.content:
            response = httpx.Response(200, content=b"".join(StreamShape((1,)).events()))
        if isinstance(response, Exception):
            raise response
        return response(request) if callable(response) else response

    def routes(self):
        usage = {"completion_tokens": 1}
        return {
            "/v1/models": httpx.Response(200, json={"data": [{"id": "m", "root": "m"}]}),
            "/v1/completions": httpx.Response(200, json={"usage": usage}),
            "/metrics": httpx.Response(200, text=self.page()),
            "/version": httpx.Response(200, json={"version": "1.2"}),
            "/reset_prefix_cache": httpx.Response(200, json={"success": True}),
        }

    def page(self):
        return (
            f"vllm:request_success_total {self.finished}\nvllm:prompt_tokens_total {self.prompt}\n"
            f"vllm:generation_tokens_total {self.generated}\nvllm:num_preemptions_total {self.preemptions}\n"
            "vllm:prompt_tokens_cached_total 0\nvllm:num_requests_running 3\n"
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
        )

    def exchanges(self, plan):
        self.on_replay()
        made = []
        for request in plan.requests:
            body = json.loads(request.body)
            tokens = self.tokens or body["max_tokens"]
            self.finished += 1
            self.prompt += len(body["prompt"])
            self.generated += tokens
            shape = StreamShape(chunk_tokens=(1,) * tokens, prompt_tokens=len(body["prompt"]),
                                continuous_usage=self.counts_per_chunk)
            ttft_ns = round(self.ttft_ms * MS)
            made.append(
                stream_exchange(shape, index=request.index, intended_ns=request.at_ns or 0, ttft_ns=ttft_ns)
            )
        return made


@pytest.fixture
def fake_engine():
    return FakeEngine()


@pytest.fixture
def make_server(fake_engine):
    """A `Server` that talks to `fake_engine`."""
    made = []

    def make(spec=None, *, process=None, engine=None, url="http://127.0.0.1:8000", channel=None, headers=(),
             lmcache=None, **kwargs):
        spec = spec or endpoint(url, model="m")
        contact = Contact(url, "m", channel or Channel(), headers)
        client = contact.client(transport=httpx.MockTransport((engine or fake_engine).answer))
        made.append(Server(reader_of(spec), contact, Unit(spec, process, lmcache), client, **{"start_id": 1} | kwargs))
        return made[-1]

    yield make
    for server in made:
        server.control.client.close()


@pytest.fixture
def fake_process():
    return FakeProcess()


@pytest.fixture
def make_run():
    """A run of 20 requests with counters that agree with them; `records` and counters by name change it."""

    def make(records=None, *, seed=0, counters=None, **fields):
        records = tuple(records or (make_record(index, intended_ms=100 * index) for index in range(20)))
        counts = {} if counters is False else SOUND | (counters or {})
        return Run(seed=seed, start_id=fields.pop("start_id", 1), records=records, counters=counts, **fields)

    return make


@pytest.fixture
def make_measurement():
    def make(*runs, **fields):
        conditions = fields.pop("conditions", {"engine": "vllm", "model": "m"})
        metrics = tuple(measure(run.records, run.counters) for run in runs)
        return Measurement("vllm('m')", "random_tokens(…)", conditions, runs, metrics, **fields)

    return make


@pytest.fixture
def measurement_of():
    """A measurement with a run for each list of records."""

    def make(*lists_of_records, counters=None, **fields):
        runs = tuple(
            Run(seed, 1, tuple(records), counters or {}, started_at="2026-01-02T03:04:05+00:00")
            for seed, records in enumerate(lists_of_records)
        )
        metrics = tuple(measure(run.records, run.counters) for run in runs)
        return Measurement("vllm('m')", "random_tokens(…)", {"engine": "vllm", "model": "m"}, runs, metrics, **fields)

    return make


@pytest.fixture
def measurement(measurement_of):
    return measurement_of(
        [make_record(0, ttft_ms=40, itl_ms=[10, 20, 30]), make_record(1, intended_ms=100, ttft_ms=60, itl_ms=5)],
        [make_record(0, intended_ms=1000), make_record(1, intended_ms=1100, outcome=Outcome.RESET)],
    )


MESSAGES = Path(__file__).with_name("messages.txt")
FIRST_LINE, NEXT_LINE = "  - ", "    "


@pytest.fixture(scope="session")
def stored_messages():
    """Test id below tests/unit → its texts in messages.txt, in the order of the comparisons."""
    sections, section = {}, []
    for line in MESSAGES.read_text(encoding="utf-8").splitlines():
        if line.startswith(FIRST_LINE):
            section.append(line.removeprefix(FIRST_LINE))
        elif not line or line.startswith(NEXT_LINE):
            section[-1] += "\n" + line.removeprefix(NEXT_LINE)
        else:
            section = sections.setdefault(line, [])
    return sections


@pytest.fixture
def message(request, stored_messages):
    """Compares a text, or the lines of one, with this test's section of messages.txt: `message(text)`.

    `LLMPERF_WRITE_MESSAGES=1 .venv/bin/pytest FILE` writes the sections of the tests that run; review the file's diff.
    """
    test, texts = request.node.nodeid.removeprefix("tests/unit/"), []
    expected, writes = stored_messages.get(test, []), bool(os.environ.get("LLMPERF_WRITE_MESSAGES"))

    def compare(*lines):
        texts.append("\n".join(lines))
        assert writes or texts == expected[:len(texts)]

    yield compare
    if writes:
        stored_messages[test] = texts
        write(stored_messages)
    assert len(texts) == len(stored_messages.get(test, []))


def write(sections):
    lines = []
    for test, section in sorted(sections.items()):
        texts = [FIRST_LINE + text.replace("\n", "\n" + NEXT_LINE) for text in section]
        lines += [test, *(line.rstrip() for text in texts for line in text.split("\n"))] if texts else []
    MESSAGES.write_text("\n".join(lines) + "\n", encoding="utf-8")
