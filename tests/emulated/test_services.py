"""A service of two emulated replicas behind nginx and HAProxy, with TLS and a key, measured by a whole session."""

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from pytest_llmperf import Perf, Verdict, closed, endpoint, shared_prefix
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import WrongServer
from pytest_llmperf.model.status import Measuring
from pytest_llmperf.results.reader import read_test
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import Hardware
from pytest_llmperf.testing.waiting import until

pytestmark = pytest.mark.emulated
PROXY = Path(__file__).parents[1] / "stubs" / "proxy.py"
KEY = "canary-key-of-a-service-5d1f"
PROXIES = pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
ENGINE = ("serve", "llama-3.1-8b", "--served-model-name", "m", "--max-model-len", "4096",
          "--enable-prompt-tokens-details")
QUESTIONS = shared_prefix(prefix=640, suffix=(16, 32), output=8, groups=2, arrivals=closed(4), requests=24)
LONG = shared_prefix(prefix=64, suffix=(16, 32), output=60, groups=2, arrivals=closed(4), requests=28)


class Service:
    """Two replicas behind a proxy."""

    def __init__(self, url, replicas, folder):
        self.url, self.replicas, self.folder = url, replicas, folder
        self.on_measuring = lambda _status: None

    @property
    def names(self):
        return [f"127.0.0.1:{replica.port}" for replica in self.replicas]

    def endpoint(self, **more):
        return endpoint(self.url, model="m", api_key_env="SERVICE_KEY", **more)

    def _tell(self, status):
        if isinstance(status, Measuring):
            self.on_measuring(status)

    def measure(self, spec, workload, *slos, runs=1):
        """The measurement, the results of the checks, and the test as its run file has it."""
        settings = Settings(tls_ca_file=str(self.folder / "ca.pem"), send_delay_p99_limit_ms=60_000.0,
                            stamp_error_p99_limit_ms=60_000.0, clock_gap_limit_ms=60_000.0)
        session = PerfSession(settings, self.folder, Hardware(), self._tell, rng=random.Random())
        try:
            perf = Perf(begin_execution(session, "test", "cpu"))
            measured = perf.measure(spec, workload, runs=runs)
            results = perf.check(measured, *slos)
            (path,) = (session.run_dir / "tests").glob("*.json")
            return measured, results, read_test(path)
        finally:
            session.close()


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def proxied(proxy, identity, replicas):
    """The URL of a proxy in front of these replicas."""
    if shutil.which(proxy, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None and not os.environ.get("CI"):
        pytest.skip(f"{proxy} is missing. Run: sh scripts/install_test_packages.sh")
    command = [sys.executable, PROXY, proxy, identity, *(str(replica.port) for replica in replicas)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PROXY_KEY": KEY}) as process:
        try:
            port = int(process.stdout.readline())
            until(lambda: listens(port))
            yield f"https://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture
def service(proxy, emulate, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of the machine of its own
    monkeypatch.setenv("SERVICE_KEY", KEY)
    replicas = [emulate(engine=ENGINE) for _ in range(2)]
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    place = tmp_path / "proxy"
    place.mkdir()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(place / "identity.pem"))
    with proxied(proxy, place / "identity.pem", replicas) as url:
        yield Service(url, replicas, tmp_path)


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
    assert [path for path in artefacts if KEY.encode() in path.read_bytes()] == []


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
