"""A service of two emulated replicas behind nginx and HAProxy, with TLS and a key, measured by a whole session."""

import json
import os
import random
import tempfile
from dataclasses import replace

import pytest

from pytest_llmperf import Perf, Verdict, closed, endpoint, shared_prefix, trace
from pytest_llmperf.errors import WrongServer
from pytest_llmperf.model.status import Measuring
from pytest_llmperf.results.reader import read_test
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import Hardware

pytestmark = pytest.mark.emulated
PROXIES = pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
ENGINE = ("serve", "llama-3.1-8b", "--served-model-name", "m", "--max-model-len", "4096",
          "--enable-prompt-tokens-details")
QUESTIONS = shared_prefix(prefix=640, suffix=(16, 32), output=8, groups=2, arrivals=closed(4), requests=24)
LONG = shared_prefix(prefix=64, suffix=(16, 32), output=60, groups=2, arrivals=closed(4), requests=28)


class Service:
    """Two replicas behind a proxy."""

    def __init__(self, url, replicas, folder, settings):
        self.url, self.replicas, self.folder, self.settings = url, replicas, folder, settings
        self.on_measuring = lambda _status: None

    @property
    def names(self):
        return [f"127.0.0.1:{replica.port}" for replica in self.replicas]

    def endpoint(self, **more):
        return endpoint(self.url, model="m", api_key_env="SERVICE_KEY", **more)

    def claim(self, a, b, workload, text):
        """The result of a claim about two services, and its sides."""
        session = self._session()
        try:
            return Perf(begin_execution(session, "test", "cpu")).claim(a, b, workload, text)
        finally:
            session.close()

    def _session(self):
        settings = replace(self.settings, tls_ca_file=str(self.folder / "proxy" / "ca.pem"))
        return PerfSession(settings, self.folder, Hardware(), self._tell, rng=random.Random())

    def _tell(self, status):
        if isinstance(status, Measuring):
            self.on_measuring(status)

    def measure(self, spec, workload, *slos, runs=1):
        """The measurement, the results of the checks, and the test as its run file has it."""
        session = self._session()
        try:
            perf = Perf(begin_execution(session, "test", "cpu"))
            measured = perf.measure(spec, workload, runs=runs)
            results = perf.check(measured, *slos)
            (path,) = (session.run_dir / "tests").glob("*.json")
            return measured, results, read_test(path)
        finally:
            session.close()


@pytest.fixture
def service(proxy, emulate, behind_proxy, tmp_path, monkeypatch, busy_machine):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of the machine of its own
    replicas = [emulate(engine=ENGINE) for _ in range(2)]
    return Service(behind_proxy(proxy, *(replica.port for replica in replicas)), replicas, tmp_path, busy_machine)


def pages(service):
    return [f"http://{name}/metrics" for name in service.names]


@PROXIES
def test_counters_of_two_replicas_are_summed_and_kept_by_replica(service):
    spec = service.endpoint(metrics=pages(service))
    measured, results, stored = service.measure(spec, QUESTIONS, "error_rate == 0", "prefix_cache_hit_rate >= 40%")
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.PASS], results
    (run,) = measured.runs
    shares = [run.replicas[name]["requests_finished"] for name in service.names]
    assert sum(shares) == 24 == run.counters["requests_finished"]
    assert min(shares) > 0
    assert measured.conditions["replicas"] == "2"
    assert stored.measurements[0].runs[0].replicas == run.replicas
    artefacts = [path for path in service.folder.rglob("*") if path.is_file() and path.parent.name != "proxy"]
    assert artefacts
    assert [path for path in artefacts if os.environ["SERVICE_KEY"].encode() in path.read_bytes()] == []


@PROXIES
def test_replica_killed_during_a_run_is_named_and_no_check_passes(service):
    victim = service.replicas[1]

    def kill(status):
        if status.done > 4:
            victim.process.kill()

    service.on_measuring = kill
    spec = service.endpoint(metrics=pages(service))
    _, results, _ = service.measure(spec, LONG, "error_rate <= 99%", "ttft_p50 <= 60s", "request_throughput >= 0.01/s")
    assert victim.process.poll() is not None
    assert {result.verdict for result in results} == {Verdict.ERROR}
    assert f"the service was not steady: replica {service.names[1]} vanished (ConnectError" in reason_text(results[0])


@pytest.mark.parametrize("proxy", ["nginx"])
def test_one_page_of_two_replicas_is_refused_before_load(service):
    with pytest.raises(WrongServer, match=r"Several servers answer for .*metrics=\["):
        service.measure(service.endpoint(), QUESTIONS, "error_rate == 0")


@pytest.mark.parametrize("proxy", ["nginx"])
def test_claim_of_two_services_alternates_runs_and_counts_replicas_as_starts(
    service, proxy, emulate, behind_proxy, tmp_path
):
    """The load is recorded traffic."""
    recorded = tmp_path / "recorded.jsonl"
    lines = ({"timestamp": 100 * number, "input_length": 600, "output_length": 12, "hash_ids": [number, number + 100]}
             for number in range(24))
    recorded.write_text("".join(json.dumps(line) + "\n" for line in lines))
    stable = behind_proxy(proxy, *(emulate(engine=ENGINE).port for _ in range(2)))
    a, b = (endpoint(url, model="m", api_key_env="SERVICE_KEY", metrics=[], replica_header="X-Replica", kind="h200")
            for url in (service.url, stable))
    load = trace(path=str(recorded), arrivals=closed(4), requests=24)
    claim = service.claim(a, b, load, "tpot_mean(a) / tpot_mean(b) <= 50")
    (result, *_) = claim.results
    assert result.verdict is Verdict.PASS, claim.results
    assert (result.facts["starts_a"], result.facts["starts_b"]) == (2, 2)
    assert result.facts["start_sd_source"] == "from these replicas"
    assert ([run.block for run in claim.a.runs], [run.block for run in claim.b.runs]) == ([1, 4, 5], [2, 3, 6])
    assert set(claim.a.runs[0].replicas) == set(service.names)
