"""A server that answers: the handle that measuring uses, whoever started it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_llmperf.engines.adapter import Adapter
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.errors import EngineError, MetricUnavailable, ServerDied, WrongServer
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.request import Request
from pytest_llmperf.telemetry.prometheus import Scrape, parse

if TYPE_CHECKING:
    import httpx

    from pytest_llmperf.process.supervisor import Supervised

CONTROL_TIMEOUT_S = 30.0


class Server:
    """One running server.

    Args:
        spec: what was asked for.
        adapter: how to talk to it.
        url: where it answers.
        served_name: the model id to send.
        model: what it loaded; None for an endpoint.
        process: the supervised process; None for an endpoint.
        start_id: counts the starts of a session; runs on one start share it.
        starting_s: seconds from launch to the first generated token.
    """

    def __init__(
        self,
        spec: EngineSpec,
        adapter: Adapter,
        url: str,
        served_name: str,
        *,
        start_id: int,
        model: ResolvedModel | None = None,
        process: Supervised | None = None,
        starting_s: float | None = None,
    ) -> None:
        import httpx

        self.spec = spec
        self.adapter = adapter
        self.url = url
        self.served_name = served_name
        self.start_id = start_id
        self.model = model
        self.process = process
        self.starting_s = starting_s
        self.warmed_for: set[str] = set()
        # trust_env=False: a proxy from the environment has no business between us and loopback
        self.client: httpx.Client = httpx.Client(base_url=url, timeout=CONTROL_TIMEOUT_S, trust_env=False)

    def __repr__(self) -> str:
        state = "not ours" if self.process is None else repr(self.process)
        return f"<Server {self.spec} at {self.url}, {state}>"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the timed path."""
        url = self.client.base_url
        return url.host, url.port or (443 if url.scheme == "https" else 80)

    def post(self, request: Request) -> tuple[str, bytes]:
        """HTTP path and body for one request of a workload."""
        path, body = self.adapter.post(request, self.served_name)
        return self.client.base_url.path.rstrip("/") + path, body

    def check_alive(self) -> None:
        """Raise ServerDied if the process has ended."""
        if self.process is not None and (ending := self.process.ending()) is not None:
            raise ServerDied(f"The {self.spec.engine} server died: {ending}.", self.process.evidence())

    def scrape(self) -> Scrape | None:
        """One reading of /metrics; None where the server has none."""
        import httpx

        try:
            response = self.client.get("/metrics")
            return parse(response.text) if response.status_code == 200 else None
        except (httpx.HTTPError, MetricUnavailable):
            self.check_alive()
            return None

    def counters(self) -> Mapping[str, float]:
        """Counters now, under canonical names; empty where the server shows none."""
        scrape = self.scrape()
        return {} if scrape is None else self.adapter.counters(scrape)

    def gauges(self) -> Mapping[str, float]:
        """Gauges now, under canonical names."""
        scrape = self.scrape()
        return {} if scrape is None else self.adapter.gauges(scrape)

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """Version, resolved configuration and what else a comparison depends on; asked once per start."""
        scrape = self.scrape()
        found = dict(self.adapter.resolved(self.client))
        if scrape is not None:
            found |= self.adapter.facts(scrape)
        response = self.client.get("/version")
        if response.status_code == 200 and "version" in (body := response.json()):
            found["version"] = str(body["version"])
        return found

    def reset_cache(self) -> bool:
        """Empty the prefix cache; False where this server cannot."""
        self.check_alive()
        return self.adapter.reset_cache(self.client)

    def check_identity(self) -> None:
        """Raise WrongServer unless the served models hold our name."""
        names = self.served_models()
        if self.served_name not in names:
            raise WrongServer(
                f"The server at {self.url} serves {', '.join(names) or 'nothing'}, not {self.served_name!r}: "
                "somebody else answers on this port, or the model id is wrong. Nothing was measured."
            )

    def served_models(self) -> list[str]:
        """Ids from /v1/models."""
        response = self.client.get("/v1/models")
        if response.status_code != 200:
            raise EngineError(f"{self.url}/v1/models answered {response.status_code}: {response.text[:200]!r}")
        return [str(entry["id"]) for entry in response.json().get("data", [])]

    def generate_one_token(self, timeout_s: float) -> None:
        """One real token: a health route alone proves little.

        Raises:
            EngineError: the server answers, and not with a token.
        """
        path, _ = self.adapter.post(Request(0, (1000,), 1, 1), self.served_name)
        body = {"model": self.served_name, "prompt": [1000, 1001, 1002], "max_tokens": 1, "temperature": 0}
        response = self.client.post(path, json=body, timeout=timeout_s)
        usage = response.json().get("usage", {}) if response.status_code == 200 else {}
        if usage.get("completion_tokens") != 1:
            raise EngineError(
                f"{self.url} is up but generates nothing: POST {path} for one token answered "
                f"{response.status_code}: {response.text[:200]!r}"
            )

    def wait_idle(self, finished_before: float, requests: int, timeout_s: float = 5.0) -> Mapping[str, float]:
        """Counters once the server has counted `requests` more finished ones: they lag the last byte by a step."""
        deadline = time.monotonic() + timeout_s
        while True:
            counters = self.counters()
            finished = counters.get("requests_finished")
            if finished is None or finished - finished_before >= requests or time.monotonic() > deadline:
                return counters
            time.sleep(0.05)

    def stop(self, grace_s: float) -> None:
        """End the process and wait until every descendant is gone; nothing to do for an endpoint."""
        self.client.close()
        if self.process is not None:
            self.process.stop(grace_s)
