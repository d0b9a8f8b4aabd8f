"""Faults of a server: another model, contradicting counters, a cache in the wrong state, runs that are not steady."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.results.cause import Fault
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
        """From which part of the runs to which the level changes."""
        percent = f"{100 * self.drift:+.1f} %"
        if self.beginning:
            return f"{percent} from the first fifth of run {self.first_run} to that of the other runs"
        if self.before is None:
            return f"a drift of {percent} from the first to the last run"
        first = "run" if self.before == 1 else f"{self.before} runs"
        return f"{percent} from the first {first} to the later runs"
