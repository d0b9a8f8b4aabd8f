"""How long requests took, as histograms with vLLM's bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_llmperf.emulator.http.exposition import Histogram

if TYPE_CHECKING:
    from pytest_llmperf.emulator.core.sequence import Sequence

REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
               640, 2560)  # fmt: skip
BETWEEN_TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
_S = 1e-9


def sizes(longest: int) -> list[float]:
    """1, 2, 5, 10, … up to the longest sequence."""
    return [m * 10**e for e in range(10) for m in (1, 2, 5) if m * 10**e <= longest]


class Latencies:
    """Histograms of one engine, in seconds or tokens; public attributes have the names of vLLM's metrics.

    Args:
        max_model_len: the largest bound for tokens.
        per_token: an emission of n tokens counts as n gaps of equal length, as in SGLang; otherwise as one.
    """

    def __init__(self, max_model_len: int, per_token: bool = False) -> None:
        self._per_token = per_token
        self.time_to_first_token_seconds = Histogram(FIRST_TOKEN)
        self.inter_token_latency_seconds = Histogram(BETWEEN_TOKENS)
        self.request_time_per_output_token_seconds = Histogram(BETWEEN_TOKENS)
        self.e2e_request_latency_seconds = Histogram(REQUEST)
        self.request_queue_time_seconds = Histogram(REQUEST)
        self.request_inference_time_seconds = Histogram(REQUEST)
        self.request_prefill_time_seconds = Histogram(REQUEST)
        self.request_decode_time_seconds = Histogram(REQUEST)
        self.request_num_preemptions = Histogram(PREEMPTIONS)
        tokens = sizes(max_model_len)
        self.request_prefill_kv_computed_tokens = Histogram(tokens)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.request_max_num_generation_tokens = Histogram(tokens)
        self.request_params_max_tokens = Histogram(tokens)

    def first_token(self, sequence: Sequence, at_ns: int) -> None:
        self.time_to_first_token_seconds.observe((at_ns - sequence.arrived_ns) * _S)

    def gap(self, gap_ns: int, tokens: int) -> None:
        """Observes the gap between two emissions of a sequence; `tokens` is the number of tokens in the second."""
        if self._per_token:
            self.inter_token_latency_seconds.observe(gap_ns / tokens * _S, tokens)
        else:
            self.inter_token_latency_seconds.observe(gap_ns * _S)

    def emissions(self, sequence: Sequence, at_ns: list[int], counts: list[int]) -> None:
        """Observes all emissions of a sequence, from its first token on."""
        self.first_token(sequence, at_ns[0])
        gaps_s = np.diff(np.array(at_ns)) * _S
        if self._per_token and max(counts) > 1:
            gaps_s = np.repeat(gaps_s / counts[1:], counts[1:])
        self.inter_token_latency_seconds.observe_all(gaps_s)

    def histograms(self) -> dict[str, Histogram]:
        """By vLLM's names."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Histogram)}

    def finished(self, sequence: Sequence, first_ns: int, last_ns: int) -> None:
        """Observes the latencies of a sequence that generated all its tokens."""
        scheduled = sequence.arrived_ns if sequence.first_scheduled_ns is None else sequence.first_scheduled_ns
        tokens = sequence.generated
        self.e2e_request_latency_seconds.observe((last_ns - sequence.arrived_ns) * _S)
        self.request_queue_time_seconds.observe((scheduled - sequence.arrived_ns) * _S)
        self.request_inference_time_seconds.observe((last_ns - scheduled) * _S)
        self.request_prefill_time_seconds.observe((first_ns - scheduled) * _S)
        self.request_decode_time_seconds.observe((last_ns - first_ns) * _S)
        self.request_time_per_output_token_seconds.observe((last_ns - first_ns) * _S / max(1, tokens - 1))
        self.request_num_preemptions.observe(sequence.preemptions)
        self.request_prefill_kv_computed_tokens.observe(len(sequence.prompt) - (sequence.cached_tokens or 0))
        self.request_prompt_tokens.observe(len(sequence.prompt))
        self.request_generation_tokens.observe(tokens)
        self.request_max_num_generation_tokens.observe(sequence.max_tokens)
        self.request_params_max_tokens.observe(sequence.max_tokens)
