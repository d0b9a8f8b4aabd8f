"""The names of counters and gauges on a Prometheus page, under the names that all engines share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmperf.telemetry.prometheus import START_TIME, Scrape


class PageNames:
    """Reads a page whose counters and gauges are sums over the samples of one name."""

    counter_names: Mapping[str, str] = MappingProxyType({})
    """Canonical name of a counter (metrics/server.py) → name on the metrics page, whose samples add up."""
    gauge_names: Mapping[str, str] = MappingProxyType({})
    """The same of gauges: running, waiting (requests)."""

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        """Monotonic counters under their canonical names (metrics/server.py); absent where the engine has none."""
        return scrape.counters({**self.counter_names, START_TIME: "process_start_time_seconds"})

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        """Gauges worth following, as far as the engine has them: kv_usage (share), running, waiting (requests).

        Of several data-parallel engines requests are summed, and kv_usage is that of the fullest.
        """
        return scrape.totals(self.gauge_names)

    def facts(self, scrape: Scrape) -> Mapping[str, str]:  # noqa: ARG002
        """What the metrics page says of the server that a comparison depends on (KV blocks, block size, …)."""
        return {}
