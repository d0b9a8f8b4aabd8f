"""The counters of one server, over all replicas of a service."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain

from pytest_llmperf.clock import Clock, attempts
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.api import ControlApi
from pytest_llmperf.engines.endpoint.reader import copied_name
from pytest_llmperf.engines.endpoint.replica_pages import DeploymentPages, ReplicaPages
from pytest_llmperf.errors import EngineError, MetricUnavailable, WrongServer
from pytest_llmperf.telemetry.prometheus import ACCEPT, DERIVED, LARGEST_COUNT, Scrape, parse
from pytest_llmperf.telemetry.replicas import ALONE, Counters, PagesReading, ReplicaLog

IDLE_POLL_S = 0.05
SHARES = ("kv_usage",)  # gauges that have no sum over replicas
ONE_PAGE_READINGS = 4
PROCESS_START = "process_start_time_seconds"


class ServerCounters:
    """Reads counters and gauges, and watches which processes they are of.

    Args:
        control: asks the server.
        clock: what waiting is measured by.
        replicas: metrics pages of the replicas of a service; None: the server has a page of its own.
    """

    def __init__(
        self, control: ControlApi, clock: Clock, replicas: DeploymentPages | ReplicaPages | None = None
    ) -> None:
        self._control = control
        self._reader = control.reader
        self._clock = clock
        self.replicas = replicas
        self._log = ReplicaLog()
        self._began: dict[str, float] = {}

    def pages(self, *, fresh: bool = True) -> Mapping[str, Scrape]:
        """One reading of each Prometheus page by replica; empty if the server shows no page.

        Args:
            fresh: whether a Prometheus server must have scraped the replicas after this call.

        Raises:
            EngineError: a page is too large or arrives too slowly, or a Prometheus server does not answer.
        """
        reading = self._own_page() if self.replicas is None else self.replicas.read(fresh=fresh)
        self._log.take({name: self._reader.counters(page) for name, page in reading.pages.items()}, reading.silent)
        return reading.pages

    def _own_page(self) -> PagesReading:
        from pytest_llmperf.engines.control.transports import AnswerTooLarge

        route, unit = self._reader.metrics_route, self._control.unit
        try:
            response = self._control.client.get(route, headers=ACCEPT)
            scrape = parse(response.text) if response.status_code == 200 else None
        except (AnswerTooLarge, httpx.TimeoutException) as problem:
            unit.check_dying()
            raise EngineError(
                f"{self._control.contact.service.url(route)} cannot be read: {problem}. Without the counters nobody "
                "sees a restart, cached prompts or preemptions. Mend the page, or raise control_timeout_s.",
                unit.evidence,
            ) from problem
        except (httpx.HTTPError, MetricUnavailable):
            unit.check_dying()
            scrape = None
        return PagesReading({} if scrape is None else {ALONE: scrape})

    def read(self, *, fresh: bool = True) -> Counters:
        """Counters now, under canonical names; empty if the server shows none.

        Args:
            fresh: as in `pages`.

        Raises:
            EngineError: a counter has a value that no counter can have.
        """
        replicas = {name: dict(self._reader.counters(page)) for name, page in self.pages(fresh=fresh).items()}
        lmcache = self._control.unit.lmcache
        if lmcache is not None and replicas:
            replicas[ALONE] |= lmcache.counters()
            self._log.take(replicas, {})
        for replica, counters in replicas.items():
            for name, value in counters.items():
                if not (-LARGEST_COUNT if name in DERIVED else 0) <= value <= LARGEST_COUNT:
                    page = self._reader.metrics_route + (f" of replica {replica}" if replica else "")
                    raise EngineError(
                        f"The server's counter {name} is {value:.15g}, and a counter lies between 0 and 2^53. The run "
                        f"is invalid. Look at {page}."
                    )
        return Counters(replicas)

    @property
    def replica_count(self) -> int:
        """Number of replicas at the last reading; 0 for a server alone."""
        return len(self._log.present)

    def excuse(self, replicas: Collection[str]) -> None:
        """Let these replicas vanish, appear and restart without a note, until the next call."""
        self._log.excuse(replicas)

    def restart(self) -> str | None:
        """Evidence in the readings since the last call that a process restarted; None without evidence."""
        return self._log.restart()

    def scaling(self) -> str | None:
        """Which replicas appeared or vanished since the last call, as its readings showed; None if none did."""
        return self._log.scaling()

    def gauges(self) -> Mapping[str, float]:
        """Gauges now, under canonical names: requests of all replicas, and the share of the fullest replica.

        A gauge is left out if a replica has no value for it, or a value that no gauge can have.
        """
        readings = [gauges for page in self.pages(fresh=False).values() if (gauges := self._reader.gauges(page))]
        values = {name: [gauges.get(name, -1.0) for gauges in readings] for name in {}.fromkeys(chain(*readings))}
        return {name: max(each) if name in SHARES else sum(each) for name, each in values.items()
                if all(0 <= value <= LARGEST_COUNT for value in each)}

    def remember_process(self) -> None:
        """Keep when its processes began, for `restarted_since`. Of what we start the watchdog knows."""
        self._began = self.read(fresh=False).start_times

    def restarted_since(self) -> bool:
        """Whether different processes answer than the remembered processes; False without a sign of that."""
        now = self.read(fresh=False).start_times
        return bool(self._began and now) and self._began != now

    def wait_idle(self, finished_before: float, requests: int, timeout_s: float = 5.0) -> Counters:
        """Counters once the server has counted `requests` more finished ones: they lag the last byte by a step."""
        for _ in attempts(self._clock, timeout_s, IDLE_POLL_S):
            counters = self.read()
            finished = counters.get("requests_finished")
            if finished is None or finished - finished_before >= requests or self._log.scaled:
                break
        return counters

    def check_replicas(self) -> None:
        """Refuse replicas that are not equal or cannot be told apart.

        Raises:
            EngineError: a page of a replica cannot be read.
            WrongServer: replicas differ, or several processes answer for one page.
        """
        if self.replicas is not None:
            self.replicas.check()
            return
        page = self.pages().get(ALONE)
        if page is None or page.total(PROCESS_START) is None:
            return
        route = self._reader.metrics_route
        for _ in range(ONE_PAGE_READINGS - 1):  # each over a connection of its own: some balance by connection
            again = self._control.client.get(route, headers={**ACCEPT, "connection": "close"})
            begins = {parse(again.text).total(PROCESS_START), page.total(PROCESS_START)}
            if again.status_code == 200 and len(begins - {None}) > 1:
                raise WrongServer(
                    f"Several servers answer for {self._control.contact.service.url(route)}: their processes "
                    f"started at {' and '.join(f'{at:.15g}' for at in sorted(filter(None, begins)))}. Nothing was "
                    'measured. Name the page of each replica, endpoint(…, metrics=["http://HOST:PORT/metrics", '
                    "…]), or metrics=[] to measure without counters."
                )

    def copied_name(self) -> str | None:
        """A name on its page by which the page is a router's copy of its workers' pages; None for any other page."""
        return next(filter(None, map(copied_name, self.pages(fresh=False).values())), None)
