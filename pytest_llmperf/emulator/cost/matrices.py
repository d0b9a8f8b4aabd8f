"""Time of the matrix products of a step. A step reads the weights once, for any number of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.cost.coefficients import Coefficients

_PACKED = 0.5  # of the share of bandwidth, for weights that a kernel unpacks: docs/evidence/suite_limits.md


@dataclass(frozen=True, slots=True)
class Matrices:
    """Times of matrix products on one GPU, in seconds.

    Args:
        dense_read_s, dense_token_s: time to read the weights that every token uses, and to compute one token with them.
        head_read_s, head_row_s: the same for the output projection and one row of logits.
        expert_read_s, expert_row_s: the same for all routed experts of this GPU, and one row in one of each layer.
        experts, active: routed experts per layer, and per token.
        replicas: data-parallel replicas whose tokens meet in the same experts.
        sharpness: exponent of the smooth maximum.
        tile, alike: `expert_tile` and `expert_alike` of `Coefficients`.
    """

    dense_read_s: float
    dense_token_s: float
    head_read_s: float
    head_row_s: float
    expert_read_s: float
    expert_row_s: float
    experts: int
    active: int
    replicas: int
    sharpness: float
    tile: float
    alike: float

    def seconds(self, tokens: int, sampled: int) -> float:
        """Of one step."""
        total = self._either(self.dense_read_s, tokens * self.dense_token_s)
        total += self._either(self.head_read_s, sampled * self.head_row_s) if sampled else 0.0
        if self.experts > 1:
            met = tokens * self.replicas
            rows = self.padded(met) * self.expert_row_s
            total += self._either(self.expert_read_s * self.touched(met), rows)
        return total

    def padded(self, tokens: int) -> float:
        """Rows that the routed experts of a layer compute: whole tiles for each that is visited."""
        rows, visited = float(tokens * self.active), self.experts * self.touched(tokens)
        return max(visited * self.tile, rows + visited * self.tile / 2)

    def touched(self, tokens: int) -> float:
        """Expected share of the experts of a layer that a batch visits."""
        return 1.0 - float((1.0 - self.active / self.experts) ** (tokens**self.alike))

    def _either(self, read_s: float, compute_s: float) -> float:
        """Smooth maximum of the read time and the compute time. If the two times are close, the result is a little
        larger than the maximum, because the shorter time is not completely hidden."""
        larger, smaller = (read_s, compute_s) if read_s >= compute_s else (compute_s, read_s)
        if larger == 0.0:
            return 0.0
        excess: float = (1.0 + (smaller / larger) ** self.sharpness) ** (1.0 / self.sharpness)
        return larger * excess


def matrices_of(config: EngineConfig, coefficients: Coefficients) -> Matrices:
    """Matrix times of a deployment. The weights are divided over the GPUs of a replica. With expert parallelism the
    experts are divided over the GPUs of all replicas."""
    shape, gpu, tp = config.shape, config.gpu, config.tensor_parallel
    replicas = config.data_parallel if config.expert_parallel else 1
    bandwidth = gpu.bandwidth_bytes_per_s * coefficients.weight_bandwidth
    bf16 = gpu.bf16_flops * coefficients.matrix
    native = config.weights == "fp8" and gpu.fp8_flops is not None
    flops = (gpu.fp8_flops or 0.0) * coefficients.matrix_fp8 if native else bf16
    routed = shape.expert_layers * shape.expert_parameters / (tp * replicas)
    expert_bytes = shape.expert_bytes(config.weights)
    expert_bandwidth = bandwidth * coefficients.expert_bandwidth
    dense_bandwidth = bandwidth if shape.quantization is None else bandwidth * _PACKED
    return Matrices(
        dense_read_s=shape.dense_parameters / tp * shape.matrix_bytes(config.weights) / dense_bandwidth,
        dense_token_s=2 * shape.dense_parameters / tp / flops,
        head_read_s=shape.head_parameters / tp * 2 / bandwidth,
        head_row_s=2 * shape.head_parameters / tp / bf16,
        expert_read_s=shape.experts * routed * expert_bytes / expert_bandwidth,
        expert_row_s=2 * routed / (flops * coefficients.expert_matrix),
        experts=shape.experts,
        active=shape.active_experts,
        replicas=replicas,
        sharpness=coefficients.sharpness,
        tile=coefficients.expert_tile,
        alike=coefficients.expert_alike,
    )
