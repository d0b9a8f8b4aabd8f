"""Faults of runs: why a run is invalid by its requests and answers, the load generator, the server or the GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.results.check import Fault
from pytest_llmperf.results.sentences import number

SHOWN_NAME = 80
NOT_THE_ENGINE = (
    "The cause is no flag of the engine, but an unfinished warm-up, heat, a leak or another process. Look at the gpu "
    "and server tables of the run file, send more warm-up requests, and run the test again."
)
BOUND_REMEDY = (
    "This model on these GPUs cannot be that fast. The answers come from a cache, a different model, different "
    "hardware, or a server that invents answers."
)


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
        rate_limited_answers: failed requests that the server refused for now; None if it refused none.
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


@dataclass(frozen=True, slots=True)
class OtherModel(Fault):
    """Another model answered; `names` are the most frequent name and the declared aliases."""

    answers: int
    of_answers: int
    names: list[str]
    asked_model: str
    other_names: int

    def reason(self) -> str:
        name, *declared = self.names
        others = f" (and {number(self.other_names, 'other name')})" if self.other_names else ""
        aliases = f"; declared: {', '.join(map(repr, declared))}" if declared else ""
        return (f"{self.answers} of {self.of_answers} answers came from model {shortened(name)}{others}, and "
                f"{self.asked_model!r} was requested{aliases}. If both names mean one model, declare the name: "
                'model_alias="…" in the engine or endpoint.')


def shortened(name: str) -> str:
    """A name that a server gave, quoted and cut to a length that a message can show."""
    return repr(name if len(name) <= SHOWN_NAME else name[:SHOWN_NAME] + "…")


@dataclass(frozen=True, slots=True, kw_only=True)
class BelowHardwareBound(Fault):
    """Latencies that this model on these GPUs cannot have.

    Args:
        text: which latency.
        gpus: of the server.
        answers, of_answers: requests below the bound, of how many.
        share: lower limit of their share, at `confidence`.
        measured_ms, least_ms: the most extreme latency and the bound of this latency.
        bound_by: what takes the least time.
    """

    text: str
    gpus: str
    answers: int
    of_answers: int
    share: float
    confidence: float
    measured_ms: float
    least_ms: float
    bound_by: str

    def reason(self) -> str:
        return (f"{self.text} is below the lower bound of {self.gpus} in {self.answers} of {self.of_answers} requests "
                f"(above {self.share:.1%} of all at {self.confidence:.0%} confidence): {self.measured_ms:.3g} ms "
                f"measured, at least {self.least_ms:.3g} ms possible ({self.bound_by}). {BOUND_REMEDY}")


@dataclass(frozen=True, slots=True)
class ServerRestarted(Fault):
    text: str

    def reason(self) -> str:
        return f"the server restarted itself: {self.text} between two readings."


@dataclass(frozen=True, slots=True)
class ServiceScaled(Fault):
    text: str

    def reason(self) -> str:
        return (f"the service was not steady: {self.text}. Its runs are of different services: keep the number of "
                "replicas fixed while you measure (no autoscaler, no rollout), and find out why a replica ended.")


@dataclass(frozen=True, slots=True)
class ReplicaIdle(Fault):
    """A router sent none of the requests to a replica."""

    replica: str
    replicas: int
    requests: int
    router: str

    def reason(self) -> str:
        numbered = self.replica.isdigit()
        who = f"replica {self.replica} of {self.replicas}" if numbered else f"server {self.replica}"
        judged = ", or let a check judge it: replica_imbalance <= 1.3" if numbered else ""
        return (f"{who} served none of {self.requests} requests: {self.router} sends nothing there. Choose another "
                f"policy{judged}.")


@dataclass(frozen=True, slots=True)
class CacheNotEmpty(Fault):
    hit_rate: float
    most_hit_rate: float
    by_usage: bool

    def reason(self) -> str:
        source = " by the usage of the answers" if self.by_usage else ""
        return (f"prefix-cache hit rate {self.hit_rate:.1%}{source}, and these requests can have "
                f"{self.most_hit_rate:.1%} at most: prompts of an earlier run were still cached.")


@dataclass(frozen=True, slots=True)
class LmcacheUnused(Fault):
    """LMCache had no hit, although a share `reuse` of the prompt tokens repeats."""

    reuse: float
    hit_rate: float

    def reason(self) -> str:
        return (f"LMCache is attached and had no hit: {self.reuse:.0%} of the prompt tokens repeat, and the engine's "
                f"own cache had only {self.hit_rate:.0%}.")


@dataclass(frozen=True, slots=True)
class Preemptions(Fault):
    count: float

    def reason(self) -> str:
        return (f"{number(self.count, 'preemption')}: the KV cache was too small for this load. Name preemptions in "
                "the check, or allow them with perf.measure(…, may_preempt=True).")


@dataclass(frozen=True, slots=True)
class ForeignRequests(Fault):
    """The server finished `counted` requests, and the run sent `count`."""

    counted: float
    count: float

    def reason(self) -> str:
        return (f"the server finished {number(self.counted, 'request')} and this run sent {self.count:.0f}: another "
                "client uses the server.")


@dataclass(frozen=True, slots=True)
class TokensMiscounted(Fault):
    """Answers report `count` tokens, and the server counted `counted`."""

    count: float
    counted: float

    def reason(self) -> str:
        return f"answers report {number(self.count, 'generated token')}, and the server counted {self.counted:.0f}."


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSteady(Fault):
    """The level of the runs of one server start changes.

    Args:
        first_run, last_run, start_id: the runs and their server start.
        metric, levels: of each run, in ms.
        drift, p: size of the change and its p value.
        before: runs before a change of level; None for a straight line through all runs.
        beginning: the first fifth of the first run differs from that of the other runs.
    """

    first_run: int
    last_run: int
    start_id: int
    metric: str
    levels: list[float]
    drift: float
    p: float
    before: int | None = None
    beginning: bool | None = None

    def reason(self) -> str:
        levels = ", ".join(f"{level:.4g}" for level in self.levels)
        return (f"runs {self.first_run} to {self.last_run} (server start {self.start_id}): not steady: "
                f"{self.metric} {levels} ms, {self._change} (p = {self.p:.1g}). {NOT_THE_ENGINE}")

    @property
    def _change(self) -> str:
        """The change of the level in percent, and the two parts of the runs that it separates."""
        percent = f"{100 * self.drift:+.1f} %"
        if self.beginning:
            return f"{percent} from the first fifth of run {self.first_run} to that of the other runs"
        if self.before is None:
            return f"a drift of {percent} from the first to the last run"
        first = "run" if self.before == 1 else f"{self.before} runs"
        return f"{percent} from the first {first} to the later runs"


@dataclass(frozen=True, slots=True)
class GpuContended(Fault):
    text: str

    def reason(self) -> str:
        return (f"the GPU was contended: {self.text}. End that program, give this run a GPU of its own with "
                "CUDA_VISIBLE_DEVICES, and run the test again.")


@dataclass(frozen=True, slots=True)
class GpuThrottled(Fault):
    """Heat or the power supply lowered the clocks in `samples` of `of_samples`."""

    throttle_reasons: list[str]
    samples: int
    of_samples: int
    temperature_c: int | None = None

    def reason(self) -> str:
        heat = "" if self.temperature_c is None else f", up to {self.temperature_c} °C"
        return (f"the GPU was throttled ({', '.join(self.throttle_reasons)}) in {self.samples} of {self.of_samples} "
                f"samples{heat}, so the engine did not determine its clocks. Check cooling and power, let the GPU "
                "rest, and run the test again.")


@dataclass(frozen=True, slots=True)
class GpuFault(Fault):
    text: str

    def reason(self) -> str:
        return (f"{self.text}. Look at `nvidia-smi -q` and the kernel's log (dmesg) before you measure on this GPU "
                "again.")


@dataclass(frozen=True, slots=True)
class GpusMixed(Fault):
    names: list[str]

    def reason(self) -> str:
        return (f"the server ran on several GPU models, {' and '.join(self.names)}: choose equal GPUs with "
                "CUDA_VISIBLE_DEVICES.")


@dataclass(frozen=True, slots=True)
class GpuPartitioned(Fault):
    gpu: int
    text: str

    def reason(self) -> str:
        return (f"GPU {self.gpu} ({self.text}) is partitioned (MIG), and a slice is not the hardware of the test's "
                "marker. Switch MIG off with nvidia-smi -mig 0.")


@dataclass(frozen=True, slots=True)
class GpuSettingsChanged(Fault):
    gpu: int
    settings: list[str]

    def reason(self) -> str:
        return (f"the settings of GPU {self.gpu} differ from those of the first run: {', '.join(self.settings)}. "
                "Measure again.")
