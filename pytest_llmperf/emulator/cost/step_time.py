"""How long one step takes: a roofline with fitted shares of the peaks and fitted overheads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt

from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.cost.capacity import kv_bytes_per_gpu
from pytest_llmperf.emulator.cost.coefficients import Coefficients
from pytest_llmperf.shapes import ModelShape

# Of each step, on the host: drafts are looked up and compared. 0.2 to 1.1 ms with vLLM 0.26.0 on ten H200 hosts
# (docs/measured/h200).
_LOOKUP_S = 6e-4
# For weights that a kernel unpacks (docs/evidence/suite_limits.md): shares of the share of bandwidth, for integers of 4
# bits and for fp8 on a GPU that cannot compute in fp8, and of the share of FLOP/s, for both on such a GPU.
_PACKED, _FP8_PACKED, _UNPACKED = 0.5, 0.75, 0.65


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
        """Duration of the matrix products of one step."""
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
    packed = _PACKED if shape.quantization else 1.0
    flops = bf16
    if config.weights == "fp8" and gpu.fp8_flops is not None:
        flops = gpu.fp8_flops * coefficients.matrix_fp8
    elif gpu.fp8_flops is None and (config.weights == "fp8" or shape.quantization):
        packed, flops = packed if shape.quantization else _FP8_PACKED, bf16 * _UNPACKED
    routed = shape.expert_layers * shape.expert_parameters / (tp * replicas)
    expert_bytes = shape.expert_bytes(config.weights)
    expert_bandwidth = bandwidth * coefficients.expert_bandwidth
    dense_bandwidth = bandwidth * packed
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


@dataclass(frozen=True, slots=True)
class StepLoad:
    """Sums over the sequences of one step. `kv_tokens` and `attention_pairs` are arrays with a value per step if the
    load stands for consecutive steps in which only these two numbers change.

    Args:
        sequences: rows of the batch.
        tokens: new tokens, of prompts and of decoding sequences (drafts included).
        prefill_tokens: new tokens that belong to prompts.
        sampled: rows of logits.
        kv_tokens: tokens of KV cache that attention reads, the new ones included.
        attention_pairs: query–key pairs: Σ new × (context before + (new + 1)/2).
        drafted: tokens that a draft model proposes.
    """

    sequences: int
    tokens: int
    prefill_tokens: int
    sampled: int
    kv_tokens: int | npt.NDArray[np.int64]
    attention_pairs: float | npt.NDArray[np.float64]
    drafted: int = 0


class StepTime:
    """Seconds of a step of one replica.

    step = overheads + matrices + attention + all-reduces (+ the draft model), where
    matrices = smooth max(weights read once / bandwidth, FLOPs / peak), routed experts apart from the rest;
    attention = KV cache read / bandwidth + pairs × FLOPs / peak;
    all-reduces = 2 per layer × (latency + 2 (tp − 1)/tp × bytes / link).
    `kv_tokens` and `attention_pairs` of a load may be arrays with a value per step. They are only added and multiplied,
    so a fast-forward over many steps gets exactly the times of the single steps.
    """

    def __init__(self, config: EngineConfig, coefficients: Coefficients) -> None:
        shape, gpu, tp = config.shape, config.gpu, config.tensor_parallel
        self._config = config
        self._coefficients = coefficients
        self._products_s = lru_cache(maxsize=4096)(matrices_of(config, coefficients).seconds)
        share = coefficients.kv_bandwidth_fp8 if config.kv == "fp8" else coefficients.kv_bandwidth
        self._kv_s = kv_bytes_per_gpu(shape, config.kv, tp) / (gpu.bandwidth_bytes_per_s * share)
        self._pair_s = shape.pair_flops / tp / (gpu.bf16_flops * coefficients.attention)
        self._window, self._windowed = _window(shape)
        self._fixed_s = coefficients.step_s + shape.layers * coefficients.layer_s
        self._fixed_s += shape.expert_layers * coefficients.expert_layer_s
        if config.weights == "fp8" and gpu.fp8_flops is not None:
            self._fixed_s += shape.layers * coefficients.fp8_layer_s
        self._sequence_s = coefficients.sequence_s
        if not config.async_scheduling:
            self._fixed_s += coefficients.sync_s
            self._sequence_s += coefficients.sync_sequence_s
        per_token = coefficients.token_s * shape.layers
        per_token += coefficients.expert_token_s * shape.expert_layers * shape.active_experts
        self._token_s = per_token * shape.hidden / gpu.bandwidth_bytes_per_s
        speculation = config.speculation
        if speculation is not None and speculation.draft is None:
            self._fixed_s += _LOOKUP_S
        self._eager_s = shape.layers * coefficients.eager_layer_s
        self._ungraphed_s = shape.layers * coefficients.ungraphed_layer_s
        self._ungraphed_s += shape.expert_layers * coefficients.expert_ungraphed_layer_s
        self._sglang = config.engine == "sglang"
        self._stream_s = coefficients.stream_s
        self._reduce_s, self._reduce_token_s = _all_reduces(config, coefficients)
        self._draft = _draft(config, coefficients)

    def seconds(self, load: StepLoad) -> float | npt.NDArray[np.float64]:
        """Duration of a step; an array where the load has arrays."""
        fixed = self._fixed_s + load.sequences * self._sequence_s + load.tokens * self._token_s
        fixed += self._reduce_s + load.tokens * self._reduce_token_s
        fixed += self._products_s(load.tokens, load.sampled)
        if self._draft is not None and load.drafted:
            fixed += self._draft_s(load)
        total = fixed + self._attention_s(load)
        # The front end handles one message per sequence and step, whatever the number of accepted drafts.
        return _at_least(total, max(load.sequences * self._stream_s, self._launch_s(load)))

    def ingress_s(self, prompt_tokens: int) -> float:
        """Seconds of a request outside the engine: from send to queue, plus from first token to client."""
        return self._coefficients.ingress_s + prompt_tokens * self._coefficients.ingress_token_s

    def _attention_s(self, load: StepLoad) -> float | npt.NDArray[np.float64]:
        read_s = load.kv_tokens * self._kv_s
        full = cast("float | npt.NDArray[np.float64]", read_s + load.attention_pairs * self._pair_s)
        if not self._windowed:
            return full
        kv = np.minimum(load.kv_tokens, load.sequences * self._window + load.tokens)
        pairs = np.minimum(load.attention_pairs, load.tokens * self._window)
        near = kv * self._kv_s + pairs * self._pair_s
        mixed = near * self._windowed + full * (1 - self._windowed)
        return mixed if isinstance(mixed, np.ndarray) else float(mixed)

    def _launch_s(self, load: StepLoad) -> float:
        """The least time in which kernels can be launched one by one; no limit where a captured graph is replayed.

        vLLM captures all small batches, SGLang those that only decode.
        """
        if not self._config.cuda_graphs:
            return self._eager_s
        captured = load.tokens <= self._config.max_graph_size
        return 0.0 if captured and not (self._sglang and load.prefill_tokens) else self._ungraphed_s

    def _draft_s(self, load: StepLoad) -> float:
        rounds = load.drafted / load.sequences
        draft_load = StepLoad(load.sequences, load.sequences, 0, load.sequences, load.sequences, float(load.sequences))
        return rounds * float(self._draft.seconds(draft_load)) if self._draft else 0.0


def _at_least(seconds: float | npt.NDArray[np.float64], least_s: float) -> float | npt.NDArray[np.float64]:
    if isinstance(seconds, np.ndarray):
        limited: npt.NDArray[np.float64] = np.maximum(seconds, least_s)
        return limited
    return max(seconds, least_s)


def _window(shape: ModelShape) -> tuple[int, float]:
    """How many tokens the layers with limited attention look at, and which share of the layers they are."""
    if shape.latent is not None and shape.latent.top_k:
        return shape.latent.top_k, 1.0
    return shape.window, shape.window_layers / (shape.layers - shape.linear_layers)


def _all_reduces(config: EngineConfig, coefficients: Coefficients) -> tuple[float, float]:
    """Seconds per step, and per token: one after attention and one after the MLP of every layer."""
    tp = config.tensor_parallel
    if tp == 1:
        return 0.0, 0.0
    link = config.gpu.peer_bytes_per_s * coefficients.allreduce_bandwidth
    count = 2 * config.shape.layers
    return count * coefficients.allreduce_s, count * 2 * (tp - 1) / tp * config.shape.hidden * 2 / link


def _draft(config: EngineConfig, coefficients: Coefficients) -> StepTime | None:
    """The draft model on the same GPUs, one token per sequence and pass; its passes share the step's own overheads."""
    if config.speculation is None or config.speculation.draft is None:
        return None
    draft_config = replace(config, shape=config.speculation.draft, speculation=None, async_scheduling=True)
    return StepTime(draft_config, replace(coefficients, step_s=0.0, sequence_s=0.0, stream_s=0.0))
