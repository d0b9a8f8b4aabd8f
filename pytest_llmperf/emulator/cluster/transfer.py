"""KV cache on its way from a prefill engine to a decode engine."""

from __future__ import annotations

from pytest_llmperf.emulator.config import Link
from pytest_llmperf.emulator.core.batch import End
from pytest_llmperf.emulator.core.sequence import Sequence


class TransferredKv:
    """The blocks of the prefill engine as external KV cache of the decode engine (an `ExternalKv`), by the rules of
    vLLM's NIXL connector. The decode engine allocates blocks and pulls all prompt tokens that its own prefix cache
    lacks. It computes the last prompt token again and so samples the first output token itself. After a preemption the
    decode engine computes the prompt itself, because the prefill engine has dropped its copy.

    One transfer runs at a time, in the order in which they begin.

    Args:
        link: its rate, and its latency, which each transfer pays.
        bytes_per_token: KV cache bytes of a token, over all GPUs.
    """

    prefilled = True

    def __init__(self, link: Link, bytes_per_token: float) -> None:
        self._link = link
        self._bytes_per_token = bytes_per_token
        self._free_ns = 0
        self._ready: set[Sequence] = set()

    def offer(self, sequence: Sequence) -> None:
        """Its prompt is computed and can be pulled."""
        self._ready.add(sequence)

    def matched(self, sequence: Sequence, local_tokens: int, now_ns: int) -> int:  # noqa: ARG002
        if sequence not in self._ready:
            return 0
        return max(0, len(sequence.prompt) - 1 - local_tokens)

    def load(self, sequence: Sequence, local_tokens: int, tokens: int, now_ns: int) -> int:  # noqa: ARG002
        self._ready.discard(sequence)
        size = round((len(sequence.prompt) - local_tokens) * self._bytes_per_token)
        took_ns = round(1e9 * (self._link.latency_s + size / self._link.bytes_per_s))
        self._free_ns = max(now_ns, self._free_ns) + took_ns
        return self._free_ns

    def store_s(self, sequence: Sequence, computed: int, after: int, end: End) -> float:  # noqa: ARG002
        return 0.0

    def forget(self, sequence: Sequence) -> None:
        self._ready.discard(sequence)
