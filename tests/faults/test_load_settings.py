"""How requests are sent, as a user sets it: processes, connections, TLS, and a load generator that is saturated."""

import os
import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from pytest_llmperf.process.ports import reserve_port, who_listens
from pytest_llmperf.testing.waiting import until

STUBS = Path(__file__).parents[1] / "stubs"
MEASURE = """
@pytest.mark.engine(stub())
def test_x(engine, perf):
    perf.check(perf.measure(engine, FEW, runs=1), "error_rate == 0")
"""


def only_run(suite):
    (measurement,) = suite.run_files()["test_x"]["measurements"]
    (run,) = measurement["runs"]
    return measurement, run


def test_load_uses_several_processes_and_fresh_connections(suite):
    suite.settings(load_processes=2, connections='"fresh"')
    result, _ = suite.run(MEASURE)
    result.assert_outcomes(passed=1)
    measurement, run = only_run(suite)
    assert run["load"]["processes"] == 2
    assert run["load"]["kernel_stamped"] > 0.5  # the kernel begins to stamp a moment after it was asked to
    assert 0 < run["cpu"]["busy"] <= 1
    assert measurement["conditions"]["connections"] == "fresh"


def test_saturated_load_generator_makes_test_an_error_with_numbers(suite):
    """Fault 40: nobody sends within a nanosecond, so the limit stands for any that is too small for a machine."""
    suite.settings(send_delay_p99_limit_ms=0.000001)
    result, junit = suite.run(MEASURE)
    result.assert_outcomes(errors=1)
    assert result.ret == 10
    (error,) = junit.iter("error")
    assert "load generator saturated: " in error.text
    assert "load process(es) on" in error.text
    assert "raise the limit" in error.text


@pytest.mark.parametrize(("key", "value"), [("load_processes", 0), ("connections", '"new"'), ("load_cpus", '"4096"')])
def test_settings_that_cannot_be_meant_are_usage_errors(suite, key, value):
    suite.settings(**{key: value})
    result, _ = suite.run(MEASURE)
    assert result.ret != 0
    assert key in result.stdout.str() + result.stderr.str()


@pytest.fixture
def https_endpoint(tmp_path):
    """A stub engine behind TLS: its URL and the file of the certificate to trust."""
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "identity.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with (
        closing(reserve_port(random.Random())) as lease,
        subprocess.Popen([sys.executable, STUBS / "engine.py", "serve", "m", "--port", str(lease.port),
                          "--served-model-name", "m"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        subprocess.Popen([sys.executable, STUBS / "tls_front.py", str(lease.port), tmp_path / "identity.pem"],
                         stdout=subprocess.PIPE, text=True) as terminator,
    ):
        until(lambda: who_listens(lease.port))
        yield f"https://127.0.0.1:{int(terminator.stdout.readline())}", tmp_path / "ca.pem"
        for process in (server, terminator):
            process.terminate()


ENDPOINT = """
from pytest_llmperf import endpoint

@pytest.mark.cpu
def test_x(perf):
    perf.check(perf.measure(endpoint({url!r}, model="m"), FEW, runs=1), "error_rate == 0")
"""


def test_an_https_endpoint_is_measured(suite, https_endpoint):
    url, trusted = https_endpoint
    suite.settings(tls_ca_file=f'"{trusted}"')
    result, _ = suite.run(ENDPOINT.format(url=url))
    result.assert_outcomes(passed=1)
    assert only_run(suite)[1]["load"]["kernel_stamped"] > 0.5


def test_the_certificates_lie_in_the_project_wherever_pytest_runs(suite, https_endpoint, monkeypatch):
    url, trusted = https_endpoint
    (suite.folder / "ca.pem").write_bytes(Path(trusted).read_bytes())
    suite.settings(tls_ca_file='"ca.pem"')
    monkeypatch.chdir(suite.pytester.mkdir("elsewhere"))
    result, _ = suite.run(ENDPOINT.format(url=url), f"--rootdir={suite.folder}", "../test_it.py")
    result.assert_outcomes(passed=1)


def test_untrusted_https_endpoint_is_refused(suite, https_endpoint):
    url, _ = https_endpoint
    result, junit = suite.run(ENDPOINT.format(url=url))
    result.assert_outcomes(errors=1)
    assert "certificate verify failed" in next(junit.iter("error")).text


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a CPU for the load and one for the server are needed")
def test_reserved_load_cpu_is_reported_and_stored(suite):
    cpu = max(os.sched_getaffinity(0))
    suite.settings(load_cpus=f'"{cpu}"')
    result, _ = suite.run(MEASURE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*load generator on CPU {cpu} of its own, servers on * others*"])
    load = only_run(suite)[1]["load"]
    assert (load["cpus"], load["own_cpus"]) == ([cpu], True)
