"""What datasheets say of the hardware kinds, and the latency bound that follows."""

from __future__ import annotations

from dataclasses import dataclass

# Bytes/s of one GPU's memory, as NVIDIA's datasheets have it: L4; A100 80GB SXM; H100 SXM; H200 SXM.
MEMORY_BANDWIDTH = {"l4": 300e9, "a100": 2.039e12, "h100": 3.35e12, "h200": 4.8e12}

# GiB of it, as NVML has them. Suites' limits are written for these models: an A100 40GB is another GPU.
MEMORY_GIB = {"l4": 22.5, "a100": 80.0, "h100": 80.0, "h200": 140.4}

# Bytes of one GPU's second-level cache: so much of the weights need not be read again in the next step.
CACHE_BYTES = {"l4": 48e6, "a100": 40e6, "h100": 50e6, "h200": 50e6}

# FLOP/s of one GPU in dense matrix products, by bytes per weight: bfloat16, and fp8 where the GPU has it.
PEAK_FLOPS = {
    "l4": {2: 121e12, 1: 242e12},
    "a100": {2: 312e12, 1: 312e12},
    "h100": {2: 989e12, 1: 1979e12},
    "h200": {2: 989e12, 1: 1979e12},
}


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
        """Least time to the first token of a prompt of which so many tokens are computed."""
        return max(self.step_ns, computed * self.prompt_token_ns)

    def decoding_ns(self, tokens: int) -> float:
        """Lower bound of the time in which a sequence generates this many further tokens, in nanoseconds."""
        return -(-tokens // self.tokens_per_step) * self.step_ns
