"""Two real replicas behind a proxy with TLS and a key: counters by replica, and the death of one during a run."""

import json
import os
import random
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from pytest_llmperf import sglang, vllm
from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.models import resolve_model
from pytest_llmperf.engines.process.environment import Installations
from pytest_llmperf.engines.process.launch import child_environment
from pytest_llmperf.process.ports import reserve_port
from pytest_llmperf.testing.waiting import until

pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SPECS = {"vllm": vllm("tiny", max_model_len=4096), "sglang": sglang("tiny", context_length=4096)}
FINISHED = {"vllm": "vllm:request_success_total", "sglang": "sglang:num_requests_total"}
SUITE = """
import os, signal, threading
import httpx
import pytest
from pytest_llmperf import closed, endpoint, shared_prefix
from pytest_llmperf.telemetry.prometheus import parse

pytestmark = [pytest.mark.cpu]
PAGES = {pages}
SERVICE = endpoint({url!r}, model="m", api_key_env="SERVICE_KEY", metrics=PAGES)


def questions(requests):
    return shared_prefix(prefix=640, suffix=(16, 32), output=16, groups=2, arrivals=closed(4), requests=requests)


def test_service(perf):
    run = perf.measure(SERVICE, questions(60), runs=1)
    perf.check(run, "error_rate == 0", "prefix_cache_hit_rate >= 40%")


def finished():
    return parse(httpx.get(PAGES[1]).text).total({finished!r}) or 0


def kill_during_run(before, over):
    while not over.wait(0.02):
        if finished() > before + 30:  # of which the warm-up sends some
            os.killpg({group}, signal.SIGKILL)
            return


def test_death(perf):
    over = threading.Event()
    killer = threading.Thread(target=kill_during_run, args=(finished(), over))
    killer.start()
    try:
        run = perf.measure(SERVICE, questions(160), runs=1)
        perf.check(run, "error_rate <= 99%", "ttft_p50 <= 60s", "request_throughput >= 0.01/s")
    finally:
        over.set()
        killer.join()
"""


@pytest.fixture
def replicas(which, tmp_path):
    """Two servers of an engine that serve one model name: port → process group."""
    spec, adapter = SPECS[which], adapter_of(which)
    place = os.environ.get(f"LLMPERF_{which.upper()}_CPU")
    environment = Installations({which: place}, ROOT, "cpu").find_environment(which)
    model = resolve_model(spec.model, tmp_path / "models", ROOT)
    groups = {}
    with ExitStack() as undo:
        for number in range(2):
            port = undo.enter_context(reserve_port(random.Random())).port
            placement = Placement("cpu", port, "m", model, environment, tmp_path / "models", root=tmp_path)
            log = undo.enter_context((tmp_path / f"replica{number}.log").open("wb"))
            env = child_environment(spec, adapter, placement)
            env.pop("VLLM_SERVER_DEV_MODE", None)  # which no service has
            process = subprocess.Popen([*environment.command(), *adapter.arguments(spec, placement)], stdout=log,
                                       stderr=log, env=env, cwd=tmp_path, start_new_session=True)
            groups[port] = process.pid
            undo.callback(process.wait)
            undo.callback(end, process.pid)
        with httpx.Client(trust_env=False) as client:
            for port in groups:
                until(lambda port=port: answers(client, port, adapter), limit_s=300)
        yield groups


def end(group):
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def answers(client, port, adapter):
    client.base_url = f"http://127.0.0.1:{port}"
    try:
        return client.get("/v1/models").status_code == 200 and adapter.ready(client)
    except httpx.TransportError:
        return False


def run_files(folder):
    files = [json.loads(path.read_text()) for path in folder.glob(".llmperf/runs/*/tests/*.json")]
    return {file["test"]["name"] if isinstance(file["test"], dict) else file["test"]: file for file in files}


@pytest.mark.parametrize(("which", "proxy"), [("vllm", "nginx"), ("sglang", "haproxy")])
def test_replicas_are_counted_apart_and_dead_replica_is_named(
    run_real, behind_proxy, replicas, which, proxy, pytester, tmp_path
):
    pytester.makepyprojecttoml(f'[tool.llmperf]\ntls_ca_file = "{tmp_path}/proxy/ca.pem"\n')
    names = [f"127.0.0.1:{port}" for port in replicas]
    result, tags = run_real(SUITE.format(
        url=behind_proxy(proxy, *replicas), pages=[f"http://{name}/metrics" for name in names],
        finished=FINISHED[which], group=list(replicas.values())[1],
    ))
    assert tags == {"test_service": set(), "test_death": {"error"}}, result.outlines
    result.stdout.fnmatch_lines([f"*the service was not steady: replica {names[1]} vanished (*"])
    (path,) = pytester.path.glob(".llmperf/runs/*/tests/*test_service*.json")
    (run,) = json.loads(path.read_text())["measurements"][0]["runs"]
    print("replicas", json.dumps(run["replicas"]))
    for counter in ("requests_finished", "prompt_tokens", "generation_tokens"):
        shares = [run["replicas"][name][counter] for name in names]
        assert sum(shares) == run["counters"][counter] > max(shares), counter
    assert run["counters"]["requests_finished"] == 60
    files = [path for path in pytester.path.rglob("*") if path.is_file()]
    assert [path for path in files if os.environ["SERVICE_KEY"].encode() in path.read_bytes()] == []
