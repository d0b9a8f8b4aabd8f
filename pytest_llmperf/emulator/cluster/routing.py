"""Replicas behind a router: which replica gets a request, by the policies of vLLM's and SGLang's routers and nginx."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from random import Random

from pytest_llmperf.emulator.cache.radix_tree import RadixTree
from pytest_llmperf.emulator.cluster.timeline import Timeline
from pytest_llmperf.emulator.core.engine import Engine, FastForward, Step
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.core.sglang_scheduler import SglangScheduler
from pytest_llmperf.emulator.core.vllm_scheduler import VllmScheduler


@dataclass(frozen=True, slots=True)
class Routing:
    """Replicas of an emulated deployment, and their router.

    Args:
        replicas: number of replicas.
        policy: one of `POLICIES`.
        thresholds: `cache_threshold`, `balance_abs_threshold` and `balance_rel_threshold` of a cache-aware router, as
            far as they differ from its defaults.
        starved: number of a replica, from 1, to which the router sends nothing (a planted fault); None in health.
        seed: of the random policies.
        sends: how often the router sends a request that reaches no server, at most; 1: no retries.
        pause_ns: pause before the second send; each further pause is 1.5 times as long. Without a pause the router
            sends to a replica that it has not tried.
        failures: failed sends in a row after which the router leaves a replica out; 0: never.
        left_out_ns: for how long.
    """

    replicas: int
    policy: str
    thresholds: Mapping[str, float] = field(default_factory=dict)
    starved: int | None = None
    seed: int = 0
    sends: int = 1
    pause_ns: int = 0
    failures: int = 0
    left_out_ns: int = 0


class Unreachable(Exception):
    """The router sent a request to a replica that does not run.

    Args:
        sequence: of the request.
        now_ns: when the router sent the request.
    """

    def __init__(self, sequence: Sequence, now_ns: int) -> None:
        super().__init__(sequence, now_ns)
        self.sequence = sequence
        self.now_ns = now_ns


class RoutedTimeline(Timeline):
    """Replicas with a common order of time. The router counts a request until the step with its last token has ended.

    Args:
        engines: one for each replica.
        routing: their router.
    """

    def __init__(self, engines: List[Engine], routing: Routing) -> None:
        super().__init__(engines)
        self._choose = POLICIES[routing.policy](self, routing)
        self.routing = routing
        self._served = [index for index in range(len(engines)) if index + 1 != routing.starved]
        self.open_to = self._served  # replicas that the router sends to
        self.dead: set[int] = set()
        self._failures = [0] * len(engines)
        self._left_out_until_ns = [0] * len(engines)
        self._endings: list[tuple[int, int]] = []  # when a step ends with the last token of a request, and where

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """Queues a sequence at the replica that the router chooses.

        Raises:
            Unreachable: the replica is dead.
            ValueError: see `give`.
        """
        self._endings = [ending for ending in self._endings if ending[0] > now_ns]
        if self.routing.failures:
            self.open_to = [index for index in self._served if self._left_out_until_ns[index] <= now_ns]
        if not self.open_to:
            raise Unreachable(sequence, now_ns)
        index = self._choose(sequence)
        if index in self.dead:
            self._fail(index, now_ns)
            living = [other for other in self.open_to if other not in self.dead]
            if not living or self.routing.sends == 1 or self.routing.pause_ns:
                raise Unreachable(sequence, now_ns)
            index = living[0]
        self._failures[index] = 0
        self.give(index, sequence, now_ns)

    def kill(self, index: int) -> List[Sequence]:
        """A replica dies with all its sequences, which are returned."""
        self.dead.add(index)
        self._endings = [ending for ending in self._endings if ending[1] != index]
        lost = [sequence for sequence, place in self._place.items() if place == index]
        for sequence in lost:
            self.drop(sequence)
        return lost

    def revive(self, index: int, now_ns: int) -> None:
        """A dead replica serves again, by a new engine in the place of the old one."""
        self.dead.discard(index)
        self._free_ns[index] = now_ns
        self._changed(index)

    def _fail(self, index: int, now_ns: int) -> None:
        self._failures[index] += 1
        if self.routing.failures and self._failures[index] >= self.routing.failures:
            self._left_out_until_ns[index] = now_ns + self.routing.left_out_ns

    def load(self, index: int) -> int:
        """Requests that the router has sent to a replica and whose answers have not ended."""
        return self.in_flight[index] + sum(ending[1] == index for ending in self._endings)

    def least_loaded(self) -> int:
        """The replica with the fewest requests; of equals the first."""
        return min(self.open_to, key=self.load)

    def cached_tokens(self, index: int, sequence: Sequence) -> int:
        """Prompt tokens that the prefix cache of a replica has now."""
        scheduler = self.engines[index].scheduler
        if isinstance(scheduler, VllmScheduler):
            return len(scheduler.pool.cached_blocks(sequence)) * scheduler.pool.block_size
        return scheduler.cache.match(sequence)[0] if isinstance(scheduler, SglangScheduler) else 0

    def _run(self, index: int, start_ns: int, until_ns: int | None, fast_forwarding: bool) -> Step | FastForward | None:
        done = super()._run(index, start_ns, until_ns, fast_forwarding)
        if done is not None:
            self._endings += [(done.ended_ns, index)] * len(done.finished)
        return done


Choose = Callable[[Sequence], int]
#: Of a cache-aware router, with the defaults of sglang-router 0.3.2.
THRESHOLDS = {"cache_threshold": 0.3, "balance_abs_threshold": 64.0, "balance_rel_threshold": 1.5}
_REMEMBERED_TOKENS = 2**24  # of each replica's prompts, by a cache-aware router


def _random(timeline: RoutedTimeline, routing: Routing) -> Choose:
    rng = Random(routing.seed)
    return lambda _sequence: rng.choice(timeline.open_to)


def _round_robin(timeline: RoutedTimeline, routing: Routing) -> Choose:  # noqa: ARG001 - all policies are made alike
    turn = -1

    def choose(_sequence: Sequence) -> int:
        nonlocal turn
        turn += 1
        return timeline.open_to[turn % len(timeline.open_to)]

    return choose


def _power_of_two(timeline: RoutedTimeline, routing: Routing) -> Choose:
    rng = Random(routing.seed)

    def choose(_sequence: Sequence) -> int:
        pair = rng.sample(timeline.open_to, 2) if len(timeline.open_to) > 1 else timeline.open_to
        return min(pair, key=timeline.load)

    return choose


def _least_loaded(timeline: RoutedTimeline, routing: Routing) -> Choose:  # noqa: ARG001
    return lambda _sequence: timeline.least_loaded()


def _consistent_hash(timeline: RoutedTimeline, routing: Routing) -> Choose:
    """Each session has one replica, by chance. Requests without a session belong to one session."""
    return lambda sequence: timeline.open_to[
        Random(f"{routing.seed} {sequence.session}").randrange(len(timeline.open_to))]


def _sticky_least_loaded(timeline: RoutedTimeline, routing: Routing) -> Choose:  # noqa: ARG001
    """Each session stays at the replica that had the fewest requests at the begin of the session."""
    replicas: dict[str, int] = {}
    return lambda sequence: replicas.setdefault(sequence.session, timeline.least_loaded())


def _cache_aware(timeline: RoutedTimeline, routing: Routing) -> Choose:
    """The policy of vllm-router and sglang-router. They compare characters or token ids; this policy compares tokens.

    If the loads differ by more than `balance_abs_threshold` and by more than the factor `balance_rel_threshold`, the
    replica with the fewest requests gets the request. Otherwise it is the replica that got the longest prefix of this
    prompt earlier, if the prefix is longer than `cache_threshold` of the prompt, else the one with the fewest requests.
    The router remembers what it sent, and does not know what the replicas have evicted.
    """
    values = THRESHOLDS | dict(routing.thresholds)
    trees = [RadixTree() for _ in timeline.engines]

    def choose(sequence: Sequence) -> int:
        chosen = select(sequence)
        trees[chosen].insert(sequence.prompt, sequence.salt)
        trees[chosen].evict(trees[chosen].size - _REMEMBERED_TOKENS)
        return chosen

    def select(sequence: Sequence) -> int:
        loads = [timeline.load(index) for index in timeline.open_to]
        difference = max(loads) - min(loads)
        if difference > values["balance_abs_threshold"] and max(loads) > min(loads) * values["balance_rel_threshold"]:
            return timeline.least_loaded()
        matched = {index: trees[index].match(sequence.prompt, sequence.salt)[0] for index in timeline.open_to}
        longest = max(matched.values())
        if not sequence.prompt or longest / len(sequence.prompt) <= values["cache_threshold"]:
            return timeline.least_loaded()
        return min((index for index, length in matched.items() if length == longest), key=timeline.load)

    return choose


def _kv_aware(timeline: RoutedTimeline, routing: Routing) -> Choose:  # noqa: ARG001
    """The replica with the fewest prompt tokens to compute before the first token of this prompt.

    Waiting requests count with their uncomputed tokens, and this prompt with the tokens that the replica's prefix cache
    lacks. Between equal replicas, the number of requests decides.
    """
    def cost(index: int, probe: Sequence) -> tuple[int, int]:
        waiting = sum(other.length - other.computed for other in timeline.engines[index].scheduler.waiting)
        return waiting + len(probe.prompt) - timeline.cached_tokens(index, probe), timeline.load(index)

    def choose(sequence: Sequence) -> int:
        probe = Sequence(-1, sequence.prompt, sequence.max_tokens, sequence.arrived_ns, sequence.salt)
        return min(timeline.open_to, key=lambda index: cost(index, probe))

    return choose


#: Policy → what makes its choice for a timeline.
POLICIES: dict[str, Callable[[RoutedTimeline, Routing], Choose]] = {
    "random": _random,
    "round_robin": _round_robin,
    "power_of_two": _power_of_two,
    "least_loaded": _least_loaded,
    "cache_aware": _cache_aware,
    "kv_aware": _kv_aware,
    "consistent_hash": _consistent_hash,
    "sticky_least_loaded": _sticky_least_loaded,
}
