"""Control requests through the pipe of an emulated engine, for httpx."""

from __future__ import annotations

import httpx

from pytest_llmperf.load.virtual import VirtualEngine


class PipeControl(httpx.BaseTransport):
    """Hands every request to an emulated engine, in its virtual time."""

    def __init__(self, engine: VirtualEngine) -> None:
        self.engine = engine

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request and its whole answer.

        Raises:
            httpx.TransportError: the engine ended.
        """
        path, body = request.url.raw_path.decode(), request.read().decode() or None
        answer = self.engine.call({"http": {"method": request.method, "path": path, "body": body}})
        headers = {"content-type": answer["content_type"]}
        return httpx.Response(answer["status"], headers=headers, text=answer["body"], request=request)
