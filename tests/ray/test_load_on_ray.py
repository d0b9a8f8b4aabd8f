"""Load processes on the nodes of a Ray cluster: `make test-ray`."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

import pytest

from pytest_llmperf.errors import ConfigError, LoadError
from pytest_llmperf.load.host_clock import ClockExchange, HostClock
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.load.ray_hosts import RayLoad, check_load_hosts, ray_hosts
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import StreamShape, streamed
from pytest_llmperf.testing.waiting import until

MS, S = 1_000_000, 1_000_000_000
GOOD = streamed(StreamShape().events(), ttft_s=0.05)
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]


def plan_of(server, requests, spacing_ns=10 * MS):
    planned = tuple(PlannedRequest(i, "/v1/completions", b"{}", at_ns=i * spacing_ns) for i in range(requests))
    return LoadPlan("127.0.0.1", server.port, planned)


@pytest.fixture
def transport_on():
    """Transports on a cluster: transport_on(cluster, load processes on each node)."""
    opened = []

    def make(cluster, processes=1):
        opened.append(RayLoad(cluster.url, processes, "shared"))
        return ProcessTransport(loading=opened[-1].load)

    yield make
    for ray_load in opened:
        ray_load.close()


def replayed(transport, plan, progress=None):
    return transport.replay(plan, cancel=threading.Event(), progress=progress)


def test_clock_estimates_contain_planted_offsets_and_drift(cluster):
    """The offset is planted by time namespaces, the drift by a clock that runs at a factor."""
    with ray_hosts(cluster.url, 1) as hosts:
        for host in hosts:
            ahead_ns = cluster.nodes[host.address].ahead_s * S
            for ppm in (0, 40, -300):
                begin_ns = host.now_ns()
                exchanges = []
                for _ in range(30):
                    sent_ns = time.monotonic_ns()
                    host_ns = host.now_ns()
                    exchanges.append(ClockExchange(
                        sent_ns, host_ns + round((host_ns - begin_ns) * ppm / 1e6), time.monotonic_ns()))
                    time.sleep(0.1)
                clock = HostClock(exchanges)
                first_ns = exchanges[0].host_ns
                assert abs(clock.offset_ns(first_ns) - ahead_ns) <= clock.error_ns(first_ns) + S // 1000
                for our_ns in range(exchanges[0].sent_ns, exchanges[-1].received_ns, 50 * MS):
                    host_ns = our_ns + ahead_ns + round((our_ns + ahead_ns - begin_ns) * ppm / 1e6)
                    assert abs(clock.our_ns(host_ns) - our_ns) <= clock.error_ns(host_ns)
                drift_ppm, error_ppm = clock.drift_ppm
                assert abs(drift_ppm - ppm) <= error_ppm
                error_ms = clock.error_ns(exchanges[15].host_ns) / 1e6
                print(f"{host.name} +{ahead_ns // S} s, {ppm} ppm: ±{error_ms:.3f} ms, "
                      f"drift {drift_ppm:.1f} ± {error_ppm:.1f} ppm")


def test_one_schedule_over_nodes_contains_planted_offsets(cluster, transport_on):
    with ScriptedServer(GOOD) as server:
        replay = replayed(transport_on(cluster, 2), plan_of(server, 120))
    assert {exchange.ending for exchange in replay.exchanges} == {Ending.COMPLETE}
    assert replay.load.processes == 6
    assert [host.requests for host in replay.load.hosts] == [40, 40, 40]
    for host in replay.load.hosts:
        ahead_ns = cluster.nodes[host.name.split()[0]].ahead_s * S
        assert abs(host.clock_offset_ns - ahead_ns) <= host.clock_error_ns
        print(host)
    error_ns = sum(host.clock_error_ns + abs(host.start_delay_ns) for host in replay.load.hosts)
    assert error_ns < 50 * MS
    for number, exchange in enumerate(replay.exchanges):
        assert abs(exchange.intended_ns - replay.started_ns - number * 10 * MS) <= error_ns


def test_death_of_node_is_error_with_name_and_ends_other_nodes(cluster, transport_on, remains):
    cluster.start("127.0.0.5", 500)
    cluster.wait_for_nodes()

    def kill_fifth(progress):
        if progress.done >= 40 and "127.0.0.5" in cluster.nodes:
            cluster.stop("127.0.0.5")

    with ScriptedServer(GOOD) as server, \
            pytest.raises(LoadError, match=r"127\.0\.0\.5 .*(died|answer)[\s\S]*of its \d+ requests") as caught:
        replayed(transport_on(cluster), plan_of(server, 3000), kill_fifth)
    print(caught.value)
    until(lambda: not remains())
    cluster.wait_for_nodes()


SUITE = """
from pytest_llmperf import endpoint, poisson, random_tokens

def test_it(perf):
    server = endpoint("http://127.0.0.1:{port}", model="tiny")
    run = perf.measure(server, random_tokens(input=64, output=32, arrivals=poisson(20), requests={requests}))
    perf.check(run, "error_rate == 0")
"""


@pytest.fixture
def emulator():
    command = [sys.executable, "-m", "pytest_llmperf.emulator", "--hardware", "h200", "--", "serve", "tiny",
               "--max-model-len", "4096", "--enable-prompt-tokens-details", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    yield int(process.stdout.readline().split(":")[-1].split()[0].strip("/"))
    process.kill()
    process.wait(60)
    process.stdout.close()


def pytest_in(folder, *options):
    """pytest of a user who has set nothing for Ray, with an empty home folder."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    (folder / "home").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=env | {"HOME": str(folder / "home")})


def test_session_with_load_hosts_passes_and_states_hosts(cluster, emulator, tmp_path, remains):
    (tmp_path / "test_it.py").write_text(SUITE.format(port=emulator, requests=60))
    (tmp_path / "llmperf.toml").write_text(f'load_hosts = "{cluster.url}"\n')
    process = pytest_in(tmp_path)
    output, _ = process.communicate(timeout=170)
    assert process.returncode == 0, output
    (file,) = tmp_path.glob(".llmperf/runs/*/tests/*.json")
    text = file.read_text()
    assert all(f'"{address} (' in text for address in cluster.nodes)
    assert '"clock_error_ns"' in text
    assert not (tmp_path / "home" / ".ray").exists()  # where Ray keeps tokens
    until(lambda: not remains())


def test_killed_pytest_leaves_no_process_on_any_node(cluster, emulator, tmp_path, remains):
    (tmp_path / "test_it.py").write_text(SUITE.format(port=emulator, requests=5000))
    process = pytest_in(tmp_path, f"--llmperf-set=load_hosts={cluster.url}")
    until(lambda: len(remains()) >= 2 * len(cluster.nodes), 120)
    killed_s = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not remains(), 90)
    print(f"nothing left {time.monotonic() - killed_s:.1f} s after SIGKILL")


def test_interrupted_pytest_leaves_no_process_on_any_node(cluster, emulator, tmp_path, remains):
    (tmp_path / "test_it.py").write_text(SUITE.format(port=emulator, requests=5000))
    process = pytest_in(tmp_path, f"--llmperf-set=load_hosts={cluster.url}")
    until(lambda: len(remains()) >= 2 * len(cluster.nodes), 120)
    process.terminate()
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 2, output
    assert not remains()


def test_node_with_another_version_is_named(cluster, tmp_path):
    planted = tmp_path / "pytest_llmperf-9.9.9.dist-info"
    planted.mkdir()
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-llmperf\nVersion: 9.9.9\n")
    cluster.start("127.0.0.6", 0, 2, {"PYTHONPATH": str(tmp_path)})
    try:
        cluster.wait_for_nodes()
        with pytest.raises(LoadError, match=r"127\.0\.0\.6 .*has pytest-llmperf 9\.9\.9 \(here .*Install the same"), \
                ray_hosts(cluster.url, 1):
            pass
    finally:
        cluster.stop("127.0.0.6")
        cluster.wait_for_nodes()


def test_client_with_another_ray_version_is_refused(cluster, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "__version__", "2.0.0")
    with pytest.raises(LoadError, match=r"refuses this client: .*[Vv]ersion.*Install the cluster's"), \
            ray_hosts(cluster.url, 1):
        pass


def test_client_without_token_names_setting_of_token(cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    script = f"from pytest_llmperf.load.ray_hosts import ray_hosts\nwith ray_hosts({cluster.url!r}, 1): pass"
    result = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert re.search(r"LoadError: .*refuses this client: .*RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=FILE\.$",
                     result.stderr.strip()), result.stderr


def test_wrong_token_is_error_within_seconds(cluster_with_token, tmp_path):
    (tmp_path / "wrong").write_text("f" * 32)

    def connection(token):
        url = cluster_with_token.url
        script = f"from pytest_llmperf.load.ray_hosts import ray_hosts\nwith ray_hosts({url!r}, 1): pass"
        env = {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / token)}
        return subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120,
                              env=os.environ | env)

    begun_s = time.monotonic()
    assert re.search(r"LoadError: .*refuses the token of this client .*RAY_AUTH_TOKEN_PATH=FILE\.$",
                     connection("wrong").stderr.strip())
    assert time.monotonic() - begun_s < 25  # a refused `ray.init` takes 30 s, twice
    assert connection("token").returncode == 0


def test_nodes_without_free_cpus_are_named(cluster, remains):
    with pytest.raises(LoadError, match=r"Load host 127\.0\.0\.2 .*has no 64 free CPUs.*lower load_processes"), \
            ray_hosts(cluster.url, 64):
        pass
    assert not remains()


def test_address_without_ray_is_refused_with_command(cluster):
    with pytest.raises(ConfigError, match=r"nothing answers at 127\.0\.0\.9:11001 .*ray start --head"):
        check_load_hosts("ray://127.0.0.9:11001")


@pytest.fixture
def timed_server(monkeypatch):
    """A process that answers 50 ms after the kernel's stamp of a request, and every 10 ms from then on."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from timed import TimedServer

    with TimedServer() as server:
        yield server


def test_result_equals_one_machine_within_error(cluster, transport_on, timed_server):
    """Alternating on one server: 4 replays of each at a rate that one process sends easily."""
    body = json.dumps({"model": "timed", "prompt": "x", "max_tokens": 5, "stream": True}).encode()
    planned = tuple(PlannedRequest(i, "/v1/completions", body, at_ns=i * 20 * MS) for i in range(150))
    plan = LoadPlan("127.0.0.1", timed_server.port, planned)
    transports = {"one machine": ProcessTransport(), "nodes": transport_on(cluster)}
    e2e_ms, lengths_ms = {name: [] for name in transports}, {name: [] for name in transports}
    error_ms = 0.0
    for _ in range(4):
        for name, transport in transports.items():
            replay = replayed(transport, plan)
            assert {exchange.ending for exchange in replay.exchanges} == {Ending.COMPLETE}
            e2e_ms[name].append(median((e.ended_ns - e.sent_ns) / 1e6 for e in replay.exchanges))
            lengths_ms[name].append((replay.ended_ns - replay.started_ns) / 1e6)
            error_ms = max(error_ms, replay.load.stamp_error_p99_ns / 1e6)
    print(e2e_ms, lengths_ms, error_ms)
    for values_ms in (e2e_ms, lengths_ms):
        spread_ms = max(max(values) - min(values) for values in values_ms.values())
        assert abs(median(values_ms["nodes"]) - median(values_ms["one machine"])) <= error_ms + spread_ms
