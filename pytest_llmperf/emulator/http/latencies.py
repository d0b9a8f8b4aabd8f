"""How long requests took, as histograms with vLLM's bounds."""

from __future__ import annotations

import numpy as np

from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.http.exposition import Histogram

_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
                640, 2560)  # fmt: skip
_BETWEEN_TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_SIZES = [m * 10**e for e in range(10) for m in (1, 2, 5)]
# By vLLM's names; sizes in tokens end at the longest sequence.
_BOUNDS = {
    "time_to_first_token_seconds": _FIRST_TOKEN,
    "inter_token_latency_seconds": _BETWEEN_TOKENS,
    "request_time_per_output_token_seconds": _BETWEEN_TOKENS,
    "e2e_request_latency_seconds": _REQUEST,
    "request_queue_time_seconds": _REQUEST,
    "request_inference_time_seconds": _REQUEST,
    "request_prefill_time_seconds": _REQUEST,
    "request_decode_time_seconds": _REQUEST,
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "request_prefill_kv_computed_tokens": _SIZES,
    "request_prompt_tokens": _SIZES,
    "request_generation_tokens": _SIZES,
    "request_max_num_generation_tokens": _SIZES,
    "request_params_max_tokens": _SIZES,
}
_S = 1e-9


class Latencies:
    """Histograms of one engine, in seconds or tokens.

    Args:
        max_model_len: the largest bound for tokens.
        per_token: an emission of n tokens counts as n gaps of equal length, as in SGLang; otherwise as one.

    Attributes:
        histograms: by vLLM's names.
    """

    def __init__(self, max_model_len: int, per_token: bool = False) -> None:
        self._per_token = per_token
        self.histograms = {
            name: Histogram([bound for bound in bounds if bounds is not _SIZES or bound <= max_model_len])
            for name, bounds in _BOUNDS.items()
        }

    def first_token(self, sequence: Sequence, at_ns: int) -> None:
        self.histograms["time_to_first_token_seconds"].observe((at_ns - sequence.arrived_ns) * _S)

    def gap(self, gap_ns: int, tokens: int) -> None:
        """Observes the gap between two emissions of a sequence; `tokens` is the number of tokens in the second."""
        if self._per_token:
            self.histograms["inter_token_latency_seconds"].observe(gap_ns / tokens * _S, tokens)
        else:
            self.histograms["inter_token_latency_seconds"].observe(gap_ns * _S)

    def emissions(self, sequence: Sequence, at_ns: list[int], counts: list[int]) -> None:
        """Observes all emissions of a sequence, from its first token on."""
        self.first_token(sequence, at_ns[0])
        gaps_s = np.diff(np.array(at_ns)) * _S
        if self._per_token and max(counts) > 1:
            gaps_s = np.repeat(gaps_s / counts[1:], counts[1:])
        self.histograms["inter_token_latency_seconds"].observe_all(gaps_s)

    def finished(self, sequence: Sequence, first_ns: int, last_ns: int) -> None:
        """Observes the latencies of a sequence that generated all its tokens."""
        scheduled = sequence.arrived_ns if sequence.first_scheduled_ns is None else sequence.first_scheduled_ns
        values = {
            "e2e_request_latency_seconds": (last_ns - sequence.arrived_ns) * _S,
            "request_queue_time_seconds": (scheduled - sequence.arrived_ns) * _S,
            "request_inference_time_seconds": (last_ns - scheduled) * _S,
            "request_prefill_time_seconds": (first_ns - scheduled) * _S,
            "request_decode_time_seconds": (last_ns - first_ns) * _S,
            "request_time_per_output_token_seconds": (last_ns - first_ns) * _S / max(1, sequence.generated - 1),
            "request_num_preemptions": sequence.preemptions,
            "request_prefill_kv_computed_tokens": sequence.prompt_length - (sequence.cached_tokens or 0),
            "request_prompt_tokens": sequence.prompt_length,
            "request_generation_tokens": sequence.generated,
            "request_max_num_generation_tokens": sequence.max_tokens,
            "request_params_max_tokens": sequence.max_tokens,
        }
        for name, value in values.items():
            self.histograms[name].observe(value)
