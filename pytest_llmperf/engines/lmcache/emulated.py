"""LMCache within an emulated engine. It has no separate process and port; each tier can be emptied separately."""

from __future__ import annotations

from collections.abc import Collection

from pytest_llmperf.clock import Clock
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.lmcache.server import counters_of
from pytest_llmperf.errors import EngineError


class EmulatedLMCache:
    """Replaces the `LMCacheServer` of a real unit. The emulated engine starts and ends this LMCache.

    Args:
        client: client of the emulated engine, which serves LMCache's routes below /lmcache.
    """

    process = None
    hangs = False

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def __repr__(self) -> str:
        return f"<EmulatedLMCache of {self.client.base_url}>"

    def check_alive(self) -> None:
        """Does nothing, because the emulated LMCache lives as long as its engine."""

    def counters(self) -> dict[str, float]:
        """Counters now, under canonical names."""
        return counters_of(self._answer("GET", "/metrics").text)

    def facts(self) -> dict[str, str]:
        """Empty: the emulated LMCache resolves no setting, so the engine's flags contain all conditions."""
        return {}

    def clear(self, tiers: Collection[str], clock: Clock) -> None:  # noqa: ARG002 - nothing has to be waited for
        """Empty tiers "l1" (host memory) and "l2" (disk)."""
        for tier in sorted(tiers):
            self._answer("POST", f"/cache/clear?tier={tier}")

    def stop(self, grace_s: float) -> None:
        """It ends with its engine."""

    def _answer(self, method: str, path: str) -> httpx.Response:
        response = self.client.request(method, f"/lmcache{path}")
        if response.status_code != 200:
            raise EngineError(f"The emulated LMCache answered {method} {path} with {response.status_code}.")
        return response
