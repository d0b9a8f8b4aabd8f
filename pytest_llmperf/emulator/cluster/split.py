"""Disaggregated prefill: a prefill engine and a decode engine that act as one engine."""

from __future__ import annotations

from collections.abc import Sequence as List
from heapq import heappop, heappush

from pytest_llmperf.emulator.cluster.routing import POLICIES, RoutedTimeline, Routing, Unreachable
from pytest_llmperf.emulator.config import Link
from pytest_llmperf.emulator.core.batch import End
from pytest_llmperf.emulator.core.counters import Counters
from pytest_llmperf.emulator.core.engine import Engine, FastForward, Step
from pytest_llmperf.emulator.core.sequence import Sequence


class TransferredKv:
    """The blocks of the prefill engines as external KV cache of a decode engine (an `ExternalKv`), by the rules of
    vLLM's NIXL connector. The decode engine allocates blocks and pulls all prompt tokens that its own prefix cache
    lacks. It computes the last prompt token again and so samples the first output token itself. After a preemption the
    decode engine computes the prompt itself, because the prefill engine has dropped its copy.

    One transfer runs at a time, in the order in which they begin.

    Args:
        link: its rate, and its latency, which each transfer pays.
        bytes_per_token: KV cache bytes of a token, over all GPUs.

    Attributes:
        counters: of the decode engine.
    """

    prefilled = True

    def __init__(self, link: Link, bytes_per_token: float) -> None:
        self._link = link
        self._bytes_per_token = bytes_per_token
        self._free_ns = 0
        self.counters = Counters()
        self._ready: set[Sequence] = set()

    def offer(self, sequence: Sequence) -> None:
        """Note that the prompt of a sequence is computed, so that its KV cache can be transferred."""
        self._ready.add(sequence)

    def matched(self, sequence: Sequence, local_tokens: int, now_ns: int) -> int:  # noqa: ARG002
        if sequence not in self._ready:
            return 0
        return max(0, len(sequence.prompt) - 1 - local_tokens)

    def load(self, sequence: Sequence, local_tokens: int, tokens: int, now_ns: int) -> int:  # noqa: ARG002
        self._ready.discard(sequence)
        size = round((len(sequence.prompt) - local_tokens) * self._bytes_per_token)
        took_ns = round(1e9 * (self._link.latency_s + size / self._link.bytes_per_s))
        self.counters.transfers += 1
        self.counters.transferred_bytes += size
        self.counters.transfer_ns += took_ns
        self._free_ns = max(now_ns, self._free_ns) + took_ns
        return self._free_ns

    def store_s(self, sequence: Sequence, computed: int, after: int, end: End) -> float:  # noqa: ARG002
        return 0.0

    def forget(self, sequence: Sequence) -> None:
        self._ready.discard(sequence)


class Split(RoutedTimeline):
    """Disaggregated prefill by the rules of vLLM's proxies.

    The router chooses a prefill engine and a decode engine. The prefill engine computes the prompt and one token
    (max_tokens = 1). Then the decode engine gets the request, pulls the KV cache over the link and samples all tokens
    of the client, including the first token, because the proxy drops the token of the prefill engine. So the time to
    first token contains the transfer and a decode step after the prefill. SGLang's decode engine forwards the token of
    the prefill engine and saves that decode step.

    The blocks of the prefill engine are free after its step, even if the decode engine has not pulled them yet.

    Without a prefill engine that the router sends to, the decode engine computes the prompt itself.

    If a prefill engine dies, the sequences whose KV cache is not wholly pulled are lost, as under vLLM's default
    `kv_load_failure_policy`. A prompt whose decode engine is dead when the prompt is computed is lost then, as by
    vllm-router 0.1.17, which sends no request of a split again.

    Args:
        engines: the prefill engines, then the decode engines.
        routing: their router.
        prefill: number of prefill engines.
    """

    def __init__(self, engines: List[Engine], routing: Routing, prefill: int) -> None:
        super().__init__(engines, routing)
        self._choose_decode = POLICIES[routing.policy](self, routing)
        self._prefill = prefill
        self._pools = [[index for index in self.open_to if (index < prefill) is first] for first in (True, False)]
        self._prompts: dict[Sequence, Sequence] = {}  # what the prefill engine computes, and for whom
        self._handovers: list[tuple[int, int, Sequence]] = []
        self._number = 0
        self._cached_tokens: dict[Sequence, int] = {}
        self._sources: dict[Sequence, int] = {}  # prefill engine of what a decode engine has

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        prompt = Sequence(sequence.id, sequence.prompt, 1, now_ns, sequence.salt)
        self.engines[-1].scheduler.check(sequence)
        self.open_to, decode = self._pools
        if self.open_to:
            self.give(self._living(self._choose(prompt), sequence, now_ns), prompt, now_ns)
            sequence.arrived_ns = now_ns
            self._prompts[prompt] = sequence
        else:
            self.open_to = decode
            self.give(self._living(self._choose_decode(sequence), sequence, now_ns), sequence, now_ns)

    def kill(self, index: int) -> List[Sequence]:
        """A server dies. Returns the clients' sequences that are lost, wherever they are."""
        lost = [self._prompts.pop(sequence, sequence) for sequence in super().kill(index)]
        lost += [self._prompts.pop(prompt) for _, _, prompt in self._handovers
                 if prompt.engine == index and prompt in self._prompts]
        for engine in self.engines[self._prefill:]:
            unloaded = [*engine.scheduler.waiting, *(sequence for _, sequence in engine.scheduler.loading)]
            failed = [sequence for sequence in unloaded
                      if self._sources.get(sequence) == index and not sequence.preemptions]
            engine.counters.failed_transfers += len(failed)
            lost += failed
        return lost

    def _living(self, index: int, sequence: Sequence, now_ns: int) -> int:
        """The index of an engine.

        Raises:
            Unreachable: the engine is dead.
        """
        if index in self.dead:
            raise Unreachable(sequence, now_ns)
        return index

    def drop(self, sequence: Sequence) -> None:
        for prompt in [p for p, s in self._prompts.items() if s is sequence]:
            del self._prompts[prompt]
            super().drop(prompt)
            sequence.end = "abort"
        super().drop(sequence)
        self._cached_tokens.pop(sequence, None)
        self._sources.pop(sequence, None)

    def next_ns(self) -> int | None:
        starts = [super().next_ns(), self._handover_ns]
        return min((start for start in starts if start is not None), default=None)

    def advance(self, until_ns: int | None, fast_forwarding: bool) -> Step | FastForward | None:
        while True:
            handover_ns = self._handover_ns
            limits = [limit for limit in (until_ns, handover_ns) if limit is not None]
            event = self._advance(min(limits, default=None), fast_forwarding)
            if event is not None:
                index, done = event
                return self._prefilled(done) if index < self._prefill else self._decoded(done)
            if handover_ns is None or (until_ns is not None and handover_ns >= until_ns):
                return None
            self._hand_over(handover_ns, heappop(self._handovers)[2])

    @property
    def _handover_ns(self) -> int | None:
        return self._handovers[0][0] if self._handovers else None

    def _prefilled(self, done: Step | FastForward) -> Step:
        for prompt in done.finished:
            self._number += 1
            heappush(self._handovers, (done.ended_ns, self._number, prompt))
        return Step(done.started_ns, done.ended_ns, [], [])

    def _hand_over(self, now_ns: int, prompt: Sequence) -> None:
        sequence = self._prompts.pop(prompt, None)
        if sequence is None:  # aborted
            return
        arrived_ns, sequence.first_scheduled_ns = sequence.arrived_ns, prompt.first_scheduled_ns
        self._cached_tokens[sequence] = prompt.cached_tokens or 0
        self.open_to = self._pools[1]
        index = self._living(self._choose_decode(sequence), sequence, now_ns)
        self._sources[sequence] = prompt.engine
        handed = self.engines[index].scheduler.external
        assert isinstance(handed, TransferredKv), "decode engines get transferred KV cache"
        handed.offer(sequence)
        self.give(index, sequence, now_ns)
        sequence.arrived_ns = arrived_ns

    def _decoded(self, done: Step | FastForward) -> Step | FastForward:
        """Reports the cached tokens of the prefill engine to the client, not the transferred tokens."""
        for sequence in done.finished:
            sequence.cached_tokens = self._cached_tokens.pop(sequence, sequence.cached_tokens)
            self._sources.pop(sequence, None)
        return done
