"""The server in real time: uvicorn with uvloop and httptools around app.py."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Iterator

import uvicorn
import uvloop

from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.http.app import App
from pytest_llmperf.emulator.http.realtime import RealTime
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.emulator.http.streams import Recorder

_BACKLOG = 2048


def serve_http(service: Service, record: str | None = None) -> int:
    """Serve until SIGTERM or SIGINT, which drop all requests in flight. Returns the exit code.

    Raises:
        StartError: the server cannot listen on its address.
    """
    listener = _listening(service.launch.host, service.launch.port)
    recorder = Recorder(record) if record else None
    try:
        uvloop.run(_serve(service, listener, recorder))
    finally:
        listener.close()
        if recorder is not None:
            recorder.close()
    return 0


class _Server(uvicorn.Server):
    """uvicorn would die of the signal once more after its clean stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(service: Service, listener: socket.socket, recorder: Recorder | None) -> None:
    realtime = RealTime(service)
    config = uvicorn.Config(
        App(service, realtime, recorder), loop="uvloop", http="httptools", ws="none", lifespan="off", access_log=False,
        log_level="critical", timeout_graceful_shutdown=0, backlog=_BACKLOG, h11_max_incomplete_event_size=2**26,
    )  # fmt: skip
    server = _Server(config)
    engine = asyncio.get_running_loop().create_task(realtime.run())

    def stop() -> None:
        server.should_exit = True

    engine.add_done_callback(lambda _: stop())  # an engine that crashes takes the server with it
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop)
    gc.freeze()  # what was loaded so far need not be searched in the middle of a step
    _announce(service, listener)
    await server.serve(sockets=[listener])
    if engine.done():
        engine.result()
    engine.cancel()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {host}:{port}: [Errno {error.errno}] {error.strerror}") from None
    return listener


def _announce(service: Service, listener: socket.socket) -> None:
    launch, config = service.launch, service.launch.config
    host, port = listener.getsockname()[:2]
    print(  # noqa: T201
        f"emulated {config.gpu.name}: {config.engine} {launch.model}, {config.num_blocks} KV blocks of "
        f"{config.block_size} tokens, listening on http://{host}:{port}",
        flush=True,
    )
