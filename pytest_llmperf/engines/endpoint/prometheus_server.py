"""Metrics pages of replicas as a Prometheus server has scraped them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from pytest_llmperf.clock import Clock, seconds
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.json_answers import json_object, section
from pytest_llmperf.engines.endpoint.metrics_address import PrometheusQuery
from pytest_llmperf.engines.endpoint.reader import FAMILIES
from pytest_llmperf.errors import EngineError
from pytest_llmperf.telemetry.prometheus import PageSample, Scrape
from pytest_llmperf.telemetry.replicas import PagesReading

ROUTE = "/api/v1/query"
LOOKBACK = "5m"  # Prometheus forgets a series after this time, too
LATE_SCRAPES = 2.5  # intervals without a scrape after which a replica counts as gone
LEAST_WAIT_S = 5.0
POLL_S = 1.0


@dataclass(slots=True)
class _Replica:
    """The scrapes of one replica.

    Args:
        samples: the latest sample of each series, with the time of the scrape, s.
        times_s: times of all scrapes.
    """

    samples: list[tuple[float, PageSample]] = field(default_factory=list)
    times_s: set[float] = field(default_factory=set)

    @property
    def last_s(self) -> float:
        """Time of the last scrape."""
        return max(self.times_s)

    @property
    def interval_s(self) -> float:
        """Usual time between two scrapes; 0 after a single one."""
        gaps = [later - earlier for earlier, later in pairwise(sorted(self.times_s))]
        return median(gaps) if gaps else 0.0

    def page(self) -> Scrape:
        """The last scrape. A series that ended before the last scrape is left out."""
        return Scrape(tuple(sample for at_s, sample in self.samples if at_s == self.last_s))


class PrometheusReader:
    """Asks a Prometheus server for the series of the replicas.

    Args:
        query: server and label matchers.
        client: HTTP client of the server.
        clock: what waiting for a scrape is measured by.
    """

    def __init__(self, query: PrometheusQuery, client: httpx.Client, clock: Clock) -> None:
        self._query = query
        self._client = client
        self._clock = clock

    def read(self, *, fresh: bool) -> PagesReading:
        """The replicas that are scraped now.

        Args:
            fresh: wait until each of them was scraped after this call, by the server's own clock.

        Raises:
            EngineError: the server does not answer, or has no such series.
        """
        since_s = self._now_s()
        replicas = self._present(since_s)
        patience_s = max(LEAST_WAIT_S, LATE_SCRAPES * max(replica.interval_s for replica in replicas.values()))
        deadline_ns = self._clock.now_ns() + seconds(patience_s)
        while fresh and (late := [name for name, replica in replicas.items() if replica.last_s < since_s]):
            if self._clock.now_ns() > deadline_ns:
                pages = {name: replica.page() for name, replica in replicas.items() if name not in late}
                return PagesReading(pages, dict.fromkeys(late, f"not scraped for {patience_s:.0f} s"))
            self._clock.sleep_ns(seconds(POLL_S))
            replicas |= self._present(since_s)
        return PagesReading({name: replica.page() for name, replica in replicas.items()})

    def _present(self, now_s: float) -> dict[str, _Replica]:
        """The replicas without those that were no longer scraped at this time."""
        replicas = self._replicas()
        interval_s = max((replica.interval_s for replica in replicas.values()), default=0.0)
        oldest_s = now_s - max(LEAST_WAIT_S, LATE_SCRAPES * interval_s)
        present = {name: replica for name, replica in replicas.items() if replica.last_s >= oldest_s}
        if not present:
            raise EngineError(
                f"The Prometheus server {self._query.url} has no series of {self._selector} in the last {LOOKBACK}: "
                "the label matchers match no replica, the replicas are not scraped, or none is vLLM, SGLang, TGI, "
                "Dynamo or llm-d. Nothing was measured. Try the query in Prometheus, and correct `match=` in metrics=."
            )
        return present

    @property
    def _selector(self) -> str:
        prefixes = "|".join(family.prefix for family in FAMILIES)
        return (f'{{__name__=~"({prefixes}).*|process_start_time_seconds",__name__!~".*_bucket",'
                f"{self._query.matchers}}}")

    def _replicas(self) -> dict[str, _Replica]:
        replicas: dict[str, _Replica] = {}
        series = self._ask(f"{self._selector}[{LOOKBACK}]").get("result")
        for each in series if isinstance(series, list) else ():
            metric, values = section(each, "metric"), each.get("values")
            labels = {str(name): str(value) for name, value in metric.items()}
            name = labels.pop("__name__", "")
            if not isinstance(values, list) or not values or not name:
                continue
            replica = replicas.setdefault(_replica_name(labels), _Replica())
            replica.times_s |= {float(at_s) for at_s, _ in values}
            replica.samples.append((float(values[-1][0]), PageSample(name, labels, float(values[-1][1]))))
        return {name: replica for name, replica in replicas.items()
                if any(sample.name != "process_start_time_seconds" for _, sample in replica.samples)}

    def _now_s(self) -> float:
        """The server's time."""
        result = self._ask("time()").get("result")
        if not isinstance(result, list) or len(result) != 2:
            raise EngineError(f"{self._query.url} is not a Prometheus server: the query time() gave {result!r:.100}. "
                              "Nothing was measured. Correct metrics=.")
        return float(result[1])

    def _ask(self, query: str) -> dict[str, object]:
        try:
            response = self._client.get(ROUTE, params={"query": query})
        except httpx.HTTPError as problem:
            raise EngineError(
                f"The Prometheus server {self._query.url} does not answer ({type(problem).__name__}: {problem}). "
                f"Correct metrics=, or try `curl {self._query.url}{ROUTE}?query=up`."
            ) from problem
        answer = json_object(response)
        if answer.get("status") != "success":
            raise EngineError(
                f"The Prometheus server {self._query.url} refuses the query {query} ({response.status_code} "
                f"{response.text[:200]!r}). Correct `match=` in metrics=, or name a key with metrics_headers_env."
            )
        return section(answer, "data")


def _replica_name(labels: Mapping[str, str]) -> str:
    """The pod, where a label names it, with the address that was scraped."""
    instance = labels.get("instance", "?")
    return f"{labels['pod']} ({instance})" if "pod" in labels else instance
