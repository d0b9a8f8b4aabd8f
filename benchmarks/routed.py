"""The routers of deployments, each before the server of known timing."""

from __future__ import annotations

import os
import random
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from timed import TimedServer

from pytest_llmperf import nginx, sglang_router, vllm_router
from pytest_llmperf.clock import SystemClock, attempts
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.engines.process.environment import Installations
from pytest_llmperf.engines.routers.adapter import RouterPlacement, router_adapter_of
from pytest_llmperf.engines.routers.place import router_environment, router_version
from pytest_llmperf.model.deployment import Router
from pytest_llmperf.process.ports import reserve_port

ROOT = Path(__file__).parents[1]
ROUTERS = (vllm_router(policy="round_robin"), sglang_router(policy="round_robin"), nginx())
START_S = 60.0


@contextmanager
def running_routers(server: TimedServer) -> Iterator[dict[str, int]]:
    """Name and version of each router → its port, while the block runs. The routers run on all CPUs.

    Raises:
        EnvironmentMissing: a router is not installed.
        TimeoutError: a router does not pass a request on.
    """
    with ExitStack() as stack:
        yield dict(_started(server, router, stack) for router in ROUTERS)


def _enter_real_time() -> None:
    """Give the router the real-time priority of client and server, so that other work does not delay it."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _started(server: TimedServer, router: Router, stack: ExitStack) -> tuple[str, int]:
    adapter, folder = router_adapter_of(router), Path(stack.enter_context(TemporaryDirectory()))
    environment = router_environment(adapter, Installations(read_settings(ROOT).engines, ROOT, "cpu"))
    port, metrics_port = (stack.enter_context(closing(reserve_port(random.Random()))) for _ in range(2))
    placement = RouterPlacement(port.port, metrics_port.port, (server.url,), folder, environment.is_python)
    for name, text in adapter.files(router, placement).items():
        (folder / name).write_text(text, encoding="utf-8")
    process = stack.enter_context(subprocess.Popen((*environment.prefix, *adapter.arguments(router, placement)),
                                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                                   preexec_fn=_enter_real_time))  # noqa: PLW1509 - no threads
    stack.callback(process.terminate)
    name = f"{router.name} {router_version(adapter, environment)}"
    for _ in attempts(SystemClock(), START_S, 0.2):
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port.port}/v1/models", timeout=5).close()
            return name, port.port
    raise TimeoutError(f"{router.name} passes no request on after {START_S:g} s")
