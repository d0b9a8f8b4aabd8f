"""The latency bound that follows from the datasheet of a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatencyBound:
    """How fast a model on some GPUs can be at all, whatever the engine does.

    Args:
        gpus: in words, "2 × H200".
        step_ns: least time of one step: the weights that a token passes are read once.
        prompt_token_ns: least time of one prompt token that is computed.
        tokens_per_step: most tokens of one sequence that a step can yield; above 1 with speculation.
        reading, computing: where the two times come from, in words.
    """

    gpus: str
    step_ns: float
    prompt_token_ns: float
    tokens_per_step: int
    reading: str
    computing: str

    def first_token_ns(self, computed: int) -> float:
        """Least time to the first token of a prompt of which `computed` tokens are computed."""
        return max(self.step_ns, computed * self.prompt_token_ns)

    def decoding_ns(self, tokens: int) -> float:
        """Lower bound of the time in which a sequence generates this many further tokens, in nanoseconds."""
        return -(-tokens // self.tokens_per_step) * self.step_ns
