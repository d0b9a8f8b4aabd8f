"""Several engines as one server."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, replace

from pytest_llmperf.emulator.cache.tiers import ChunkStore, Tiers
from pytest_llmperf.emulator.cluster.routing import RoutedTimeline, Routing
from pytest_llmperf.emulator.cluster.split import Split, TransferredKv
from pytest_llmperf.emulator.cluster.timeline import Timeline
from pytest_llmperf.emulator.config import EngineConfig, Tier
from pytest_llmperf.emulator.core.counters import Counters
from pytest_llmperf.emulator.core.engine import Engine, FastForward, Step
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.core.sglang_scheduler import SglangScheduler
from pytest_llmperf.emulator.core.vllm_scheduler import VllmScheduler
from pytest_llmperf.emulator.cost.capacity import kv_bytes_per_gpu
from pytest_llmperf.emulator.cost.step_time import StepTime
from pytest_llmperf.emulator.noise import Disturbance


@dataclass(frozen=True, slots=True)
class SplitPools:
    """The pools of a prefill/decode split.

    Args:
        prefill, decode: number of prefill engines and of decode engines.
        config, step_time: of the decode engines.
    """

    prefill: int
    decode: int
    config: EngineConfig
    step_time: StepTime


class Deployment:
    """One or more engines behind a router, with a common clock.

    data_parallel creates several engines, each with its own prefix cache and its share of the tiers' capacity; the
    engines share the tiers of an LMCache server. Requests are divided as by vLLM's internal balancing or by SGLang's
    controller. transfer creates prefill engines and decode engines (see Split).

    Args:
        config: of all engines but the decode engines of a split.
        step_time: step-time model of the same engines.
        disturbances: noise of the engines of each replica, by the number of the step; none: no noise.
        routing: replicas behind a router; None for one server.
        split: the pools of a config with transfer; None: one prefill engine and one decode engine of this config.

    Attributes:
        now_ns: end of the last computed step, or a later time.
        started_ns: start of the server on the same clock.
        tiers: the KV cache tiers of each engine that has tiers.
        routed: whether the engines are replicas behind a router.
    """

    def __init__(
        self,
        config: EngineConfig,
        step_time: StepTime,
        disturbances: List[Disturbance] = (),
        routing: Routing | None = None,
        split: SplitPools | None = None,
    ) -> None:
        self.config = config
        self.step_time = step_time
        self.now_ns = self.started_ns = 0
        self.tiers: list[Tiers] = []
        self._bytes_per_token = config.tensor_parallel * kv_bytes_per_gpu(
            config.shape, config.kv, config.tensor_parallel
        )
        if config.transfer is not None:
            split = split or SplitPools(1, 1, config, step_time)
            routing = routing or Routing(split.prefill + split.decode, "round_robin")
        self._split = split
        self._disturbances = disturbances or (Disturbance(),) * (1 if routing is None else routing.replicas)
        self.engines = [self._engine(disturbance, number) for number, disturbance in enumerate(self._disturbances)
                        for _ in range(config.data_parallel)]
        self.routing = routing
        self._timeline: Timeline
        if split is not None and routing is not None:
            self._timeline = Split(self.engines, routing, split.prefill)
        elif routing is not None:
            self._timeline = RoutedTimeline(self.engines, routing)
        else:
            self._timeline = Timeline(self.engines, by_load=config.engine == "vllm")

    @property
    def counters(self) -> Counters:
        """Sum of the counters of all engines. Of a split: requests and tokens as the decode engines have them, and the
        prefix cache of the prefill engines."""
        each, first = [engine.counters for engine in self.engines], 0 if self._split is None else self._split.prefill
        prefill, decode = sum(each[:first], Counters()), sum(each[first:], Counters())
        if self._split is None:
            return decode
        return replace(
            decode,
            prefix_cache_queries=prefill.prefix_cache_queries,
            prefix_cache_hits=prefill.prefix_cache_hits,
            preemptions=prefill.preemptions + decode.preemptions,
            steps=prefill.steps + decode.steps,
        )

    @property
    def tier_hits(self) -> dict[str, int]:
        """Tokens that lookups found in each tier."""
        hits = dict.fromkeys((tier.name for tier in self.config.tiers), 0)
        for store in self.stores:
            hits[store.tier.name] += store.hits
        return hits

    @property
    def stores(self) -> list[ChunkStore]:
        """The chunk stores of all tiers; a store that several engines share is listed once."""
        return list(dict.fromkeys(store for tiers in self.tiers for store in tiers.stores))

    def ingress_ns(self, prompt_tokens: int) -> int:
        """Nanoseconds of a request outside the engine: from send to queue, plus from first token to client."""
        return round(self.step_time.ingress_s(prompt_tokens) * 1e9)

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """Queues a sequence. The caller must have advanced through all steps that begin before `now_ns`.

        Raises:
            Unreachable: a router sent the sequence to a dead replica.
            ValueError: the engine can never finish the sequence: it exceeds max_model_len or the KV cache.
        """
        self._timeline.submit(sequence, now_ns)
        self.now_ns = max(self.now_ns, now_ns)

    def abort(self, sequence: Sequence) -> None:
        """Drops a sequence in any state; a finished sequence is ignored."""
        self._timeline.drop(sequence)

    def number(self, pool: str, replica: int) -> int:
        """Number of a replica of a pool among all replicas; each is counted from 0."""
        return replica + (self._split.prefill if pool == "decode" and self._split is not None else 0)

    def kill(self, replica: int) -> List[Sequence]:
        """A replica behind a router dies. Replicas are counted from 0. Returns the sequences that are lost."""
        assert isinstance(self._timeline, RoutedTimeline), "only replicas behind a router die"
        return self._timeline.kill(replica)

    def revive(self, replica: int) -> None:
        """A dead replica serves again from now on, with empty caches and counters."""
        assert isinstance(self._timeline, RoutedTimeline), "only replicas behind a router start again"
        self.engines[replica] = self._engine(self._disturbances[replica], replica)
        self._timeline.revive(replica, self.now_ns)

    def next_ns(self) -> int | None:
        """When the next step begins; None if there is nothing to do."""
        return self._timeline.next_ns()

    def advance(self, until_ns: int | None, fast_forwarding: bool = True) -> Step | FastForward | None:
        """Runs the next step or fast-forward that begins before `until_ns`; None if no step begins before this time.

        The tokens of the step are in the future until `ended_ns`. With several engines the ends of successive steps are
        not in order, and a step of a prefill engine returns no tokens.
        """
        done = self._timeline.advance(until_ns, fast_forwarding)
        if done is not None:
            self.now_ns = max(self.now_ns, done.ended_ns)
        return done

    def sleep_until(self, now_ns: int) -> None:
        """Advances the clock of an idle deployment to `now_ns`."""
        self.now_ns = max(self.now_ns, now_ns)

    def reset_prefix_cache(self) -> bool:
        """Empties the GPUs' own; tiers keep theirs. False while blocks are held."""
        each = [engine.scheduler.reset_prefix_cache() for engine in self.engines]
        return all(each)

    def clear_tiers(self, name: str) -> None:
        """Empties the tiers of this name."""
        for tiers in self.tiers:
            tiers.clear(name)

    def clear_own_tiers(self) -> None:
        """Empties the engine's own KV cache tiers below GPU memory, and leaves the tiers of an LMCache server."""
        for name in {tier.name for tier in self.config.tiers if tier.owned}:
            self.clear_tiers(name)

    def begin_run(self) -> None:
        """New noise for each engine. Replicas that are dead serve again."""
        for replica in tuple(self._timeline.dead) if isinstance(self._timeline, RoutedTimeline) else ():
            self.revive(replica)
        for engine in self.engines:
            engine.begin_run((self.now_ns - self.started_ns) / 1e9)

    def _engine(self, disturbance: Disturbance, number: int) -> Engine:
        """An engine of the replica with this number, counted from 0."""
        config, step_time, handed = self.config, self.step_time, None
        if self._split is not None and config.transfer is not None and number >= self._split.prefill:
            handed = TransferredKv(config.transfer, self._bytes_per_token)
            config, step_time = self._split.config, self._split.step_time
        kind = VllmScheduler if config.engine == "vllm" else SglangScheduler
        scheduler = kind(config, handed or self._tiers(), disturbance.leaked_blocks)
        if handed is not None:
            handed.counters = scheduler.counters
        return Engine(step_time, scheduler, disturbance)

    def _tiers(self) -> Tiers | None:
        if not self.config.tiers:
            return None
        tiers, server = tuple(map(self._share, self.config.tiers)), self.config.tiers[0].server
        shared = self.tiers[0].stores if self.tiers and server else None
        vllm_server = server and self.config.engine == "vllm"
        self.tiers.append(Tiers(tiers, self._bytes_per_token, shared, vllm_server=vllm_server))
        return self.tiers[-1]

    def _share(self, tier: Tier) -> Tier:
        """What one engine has of a tier: each GPU has its own way to the host's memory, all share that to the disk."""
        lanes = self.config.tensor_parallel if tier.name == "cpu" else 1
        capacity = tier.capacity_bytes // (1 if tier.server else self.config.data_parallel)
        return replace(tier.faster(lanes), capacity_bytes=capacity)
