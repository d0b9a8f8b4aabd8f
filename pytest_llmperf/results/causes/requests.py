"""Faults of requests and answers, and of the load generator that sent and timed them."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.results.cause import Fault


@dataclass(frozen=True, slots=True)
class TokenCountsDisagree(Fault):
    """Usage and chunks of an answer state different token counts; `first` is the detail of the first such answer."""

    answers: int
    of_answers: int
    first: str

    def reason(self) -> str:
        return (f"token counts disagree in {self.answers} of {self.of_answers} answers (first: {self.first}): "
                "the server, or a proxy in front of it, reports other tokens than it sends.")


@dataclass(frozen=True, slots=True)
class RequestsFailed(Fault):
    """Requests failed that no check judges.

    Args:
        answers, of_answers: failed requests, of how many.
        first: the detail of the first.
        text: reasons with their counts.
        rate_limited_answers: failed requests that the server refused for now; None where it refused none.
    """

    answers: int
    of_answers: int
    first: str
    text: str
    rate_limited_answers: int | None = None

    def reason(self) -> str:
        failures = f"{self.answers} of {self.of_answers} requests failed ({self.text}; first: {self.first}). "
        if not self.rate_limited_answers:
            return f'{failures}Name "error_rate == 0" in the check to have failures judged as an SLO.'
        others = ', and "error_rate == 0" to have other failures judged'
        return (f"{failures}Lower the rate, send refused requests again with retried(…), or name "
                '"rate_limited_rate == 0" in the check to have refusals judged as an SLO'
                f"{'' if self.rate_limited_answers == self.answers else others}.")


@dataclass(frozen=True, slots=True)
class AnswersNotStreamed(Fault):
    answers: int
    of_answers: int
    limit: float

    def reason(self) -> str:
        return (f"{self.answers} of {self.of_answers} answers of several tokens came in one piece (limit "
                f"{self.limit:.0%}), so neither their TTFT nor their time per output token is known. Does the server "
                "stream token by token, and does a proxy pass tokens on at once? If answers come whole, limit E2E "
                "latency.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGeneratorFault(Fault):
    """The load generator distorted the run. The fields state the load processes; None if the load is unknown.

    Args:
        load_processes, load_cpus: how many, on how many CPUs.
        own_cpus: whether no server shares the CPUs.
        busy: share of the time.
        read_delay_ms: from the arrival of bytes to their reading, p99.
    """

    load_processes: int | None = None
    load_cpus: int | None = None
    own_cpus: bool | None = None
    busy: float | None = None
    read_delay_ms: float | None = None

    @property
    def _state(self) -> str:
        if self.load_processes is None:
            return ""
        where = f"on {self.load_cpus} CPUs {'of their own' if self.own_cpus else 'that servers share'}"
        delay = self.read_delay_ms
        read = "" if delay is None else f", read bytes {delay:.1f} ms after their arrival (p99)"
        return f"{self.load_processes} load process(es) {where}, busy {self.busy or 0:.0%} of the time{read}. "

    @property
    def _remedy(self) -> str:
        """More load processes help only if a load process was busy; otherwise a different program took the CPU."""
        ways = ["send from another host", "lower the rate", "or raise the limit"]
        if not self.own_cpus:
            ways.insert(0, "give it a free core (load_cpus)")
        if (self.busy or 0.0) > 0.5:
            ways.insert(0, f"raise load_processes (now {self.load_processes})")
        text = ", ".join(ways)
        return text[0].upper() + text[1:] + "."

    def _saturated(self, what: str) -> str:
        return f"load generator saturated: {what}. {self._state}{self._remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsSentLate(LoadGeneratorFault):
    measured_ms: float
    limit_ms: float

    def reason(self) -> str:
        return self._saturated(f"requests were sent {self.measured_ms:.1f} ms late (p99, limit {self.limit_ms:g} ms)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsEmpty(LoadGeneratorFault):
    measured_ms: float
    limit_ms: float
    share: float | None = None
    share_limit: float | None = None

    def reason(self) -> str:
        share = ""
        if self.share is not None and self.share_limit is not None:
            share = f" and for {self.share:.1%} of their time (limit {self.share_limit:.0%})"
        return self._saturated(f"slots of the closed loop stood empty for {self.measured_ms:.1f} ms (p99, limit "
                               f"{self.limit_ms:g} ms){share}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalsStampedLate(LoadGeneratorFault):
    measured_ms: float
    limit_ms: float
    kernel_stamped: float = 0.0

    def reason(self) -> str:
        return self._saturated(f"arrivals may be stamped {self.measured_ms:.1f} ms late (p99, limit {self.limit_ms:g} "
                               f"ms), because the kernel stamped only {self.kernel_stamped:.0%} of the reads")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClocksUncertain(LoadGeneratorFault):
    measured_ms: float
    limit_ms: float
    clock_error_ms: float
    load_host: str

    def reason(self) -> str:
        return (f"the clock of load host {self.load_host} is known to {self.clock_error_ms:.1f} ms only, so stamps may "
                f"be wrong by {self.measured_ms:.1f} ms (limit {self.limit_ms:g} ms): questions for its time took too "
                "long. Start Ray on a head node near the load hosts, end what else runs there, lower the rate, or "
                "raise stamp_error_p99_limit_ms.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksCoalesced(LoadGeneratorFault):
    share: float
    limit: float

    def reason(self) -> str:
        return (f"{self.share:.0%} of the chunks arrived together with the chunk before (limit {self.limit:.0%}), so "
                f"gaps between chunks do not describe the server. {self._state}Either the load generator lacks CPU, or "
                "a proxy in front of the server sends chunks in batches.")


@dataclass(frozen=True, slots=True)
class LoadProcessSuspended(Fault):
    measured_ms: float
    limit_ms: float

    def reason(self) -> str:
        return (f"the load process did not run for {self.measured_ms:.0f} ms (limit {self.limit_ms:g} ms): the machine "
                "was suspended or lacked CPU.")
