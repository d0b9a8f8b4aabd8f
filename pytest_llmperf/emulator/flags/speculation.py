"""Speculative decoding from the flags, with default acceptance rates."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_llmperf.emulator.config import Lookup, Speculation
from pytest_llmperf.emulator.cost.shape import UnknownModel, read_shape
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.shapes import ModelShape

# Methods whose drafts are made on the host or by a model of their own: vLLM then schedules step by step.
WITHOUT_ASYNC = frozenset({"ngram", "suffix", "draft_model"})

_OF_TARGET = frozenset({"eagle", "eagle3", "mtp"})

# P(position i is accepted | all before it were). The last one holds for all further positions.
# eagle3: vLLM's own expectations on MT-bench (k = 3, greedy): .730/.521/.355 for Llama 3.1 8B, .654/.399/.202 for
# Qwen3 8B. eagle: mean length 2.296 at k = 3. mtp: DeepSeek-V3's report. draft_model: an ordinary value.
_ACCEPTANCE: dict[str, tuple[float, ...]] = {
    "eagle3": (0.730, 0.714, 0.681),
    "eagle": (0.60,),
    "mtp": (0.85,),
    "draft_model": (0.75,),
    # The text decides. Random weights repeat themselves: 99.8 to 100 % on eight hosts (docs/measured/h200.md, h100.md).
    "ngram": (1.0,),
    "suffix": (1.0,),
}
_EAGLE3_OF = {"qwen3-8b": (0.654, 0.610, 0.506)}
_DEFAULT_TOKENS = {"suffix": 24, "mtp": 1}
_KNOWN_KEYS = frozenset({
    "method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "rejection_sample_method",
    "synthetic_acceptance_rates", "synthetic_acceptance_length", "draft_load_config", "draft_sample_method",
    "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob", "attention_backend", "disable_padded_drafter_batch", "max_model_len",
    "draft_tensor_parallel_size", "quantization",
})  # fmt: skip


def speculation(
    settings: dict[str, Any], target: ModelShape, target_name: str, acceptance: tuple[float, ...] | None = None, *,
    dummy: bool = False,
) -> Speculation:
    """vLLM's speculative_config.

    Args:
        settings: keys and values of speculative_config.
        target, target_name: shape and name of the model that verifies.
        acceptance: acceptance rates by draft position, unless the settings set rates; None for the method's default.
        dummy: whether the target has random weights.

    Raises:
        UsageError: a method or key that cannot be emulated.
        StartError: a value that vLLM refuses.
    """
    if unknown := sorted(set(settings) - _KNOWN_KEYS):
        raise UsageError(
            f"vllm: speculative_config {unknown[0]!r} cannot be emulated. These keys can: "
            f"{', '.join(sorted(_KNOWN_KEYS))}."
        )
    method = _method(settings)
    tokens = settings.get("num_speculative_tokens", _DEFAULT_TOKENS.get(method))
    if not isinstance(tokens, int) or tokens < 1:
        raise StartError(f"speculative_config needs num_speculative_tokens of at least 1, not {tokens!r}.")
    draft = _draft_shape(method, settings, target)
    drafted = tokens
    if method == "suffix":  # the tree holds the matched and the drafted tokens
        depth, factor = _suffix_tree(settings)
        drafted = min(tokens, int(depth * factor / (1 + factor)))
    rates = acceptance if "rejection_sample_method" not in settings else None
    if settings.get("rejection_sample_method") == "synthetic":
        given, length = settings.get("synthetic_acceptance_rates"), settings.get("synthetic_acceptance_length")
        rates = synthetic_rates(tokens, given, length)
    lookup = None if rates or dummy else _lookup(method, settings)
    rates = rates or _accepted(method, settings, target, target_name)
    return Speculation(drafted, (rates + (rates[-1],) * drafted)[:drafted], draft, method in _OF_TARGET, lookup)


def synthetic_rates(tokens: int, rates: list[float] | None, length: float | None) -> tuple[float, ...]:
    """Conditional acceptance per position from unconditional rates or from a mean acceptance length.

    With a mean length L the target accepts the first floor(L − 1) positions always, the next position with the
    remaining probability, and no later position.

    Raises:
        StartError: both or neither of `rates` and `length` are given, or a value is out of range.
    """
    if (rates is None) == (length is None):
        raise StartError("synthetic rejection needs either synthetic_acceptance_rates or synthetic_acceptance_length.")
    if length is not None:
        if not 1.0 <= length <= tokens + 1:
            raise StartError(f"synthetic_acceptance_length must be in [1, {tokens + 1}], got {length}.")
        return tuple(min(1.0, max(0.0, length - 1 - position)) for position in range(tokens))
    if rates is None or len(rates) != tokens or not all(0 <= rate <= 1 for rate in rates):
        raise StartError(f"synthetic_acceptance_rates must be {tokens} values in [0, 1], got {rates}.")
    if any(later > earlier for earlier, later in pairwise(rates)):
        raise StartError(f"synthetic_acceptance_rates must not increase, got {rates}.")
    return tuple(rate / earlier if earlier else 0.0 for earlier, rate in pairwise([1.0, *rates]))


def _suffix_tree(settings: dict[str, Any]) -> tuple[int, float]:
    """Depth of the tree, and the largest number of draft tokens per matched token."""
    depth = settings.get("suffix_decoding_max_tree_depth", 24)
    factor = settings.get("suffix_decoding_max_spec_factor", 1.0)
    if not isinstance(depth, int) or depth < 1:
        raise StartError(f"suffix_decoding_max_tree_depth={depth!r} must be >= 1")
    if not isinstance(factor, int | float) or factor < 0:
        raise StartError(f"suffix_decoding_max_spec_factor={factor!r} must be >= 0")
    return depth, factor


def _lookup(method: str, settings: dict[str, Any]) -> Lookup | None:
    """How a method finds its drafts in the text; None if a model makes them."""
    if method == "suffix":
        depth, factor = _suffix_tree(settings)
        return Lookup(1, depth, factor)
    if method != "ngram":
        return None
    least, most = settings.get("prompt_lookup_min"), settings.get("prompt_lookup_max")
    least, most = least or most or 5, most or least or 5
    if not (isinstance(least, int) and isinstance(most, int) and 1 <= least <= most):
        raise StartError(f"prompt_lookup_min={least!r} must be 1 or more, and <= prompt_lookup_max={most!r}")
    return Lookup(least, most)


def _method(settings: dict[str, Any]) -> str:
    method = settings.get("method") or ("draft_model" if settings.get("model") else None)
    if isinstance(method, str) and method.endswith("_mtp"):
        method = "mtp"  # deepseek_mtp and its like are older names of it
    if method not in _ACCEPTANCE:
        methods = ", ".join(_ACCEPTANCE)
        raise UsageError(f"vllm: speculative method {method!r} cannot be emulated. These can: {methods}.")
    return str(method)


def _accepted(method: str, settings: dict[str, Any], target: ModelShape, target_name: str) -> tuple[float, ...]:
    if method == "draft_model" and _same(str(settings.get("model")), target_name):
        return (1.0,)
    return _EAGLE3_OF.get(target.name, _ACCEPTANCE[method]) if method == "eagle3" else _ACCEPTANCE[method]


def _draft_shape(method: str, settings: dict[str, Any], target: ModelShape) -> ModelShape | None:
    """Shape of the draft model: a separate model, or a single layer of the target with its head."""
    if method == "draft_model":
        if not settings.get("model"):
            raise StartError("speculative_config with method draft_model needs a model.")
        try:
            return read_shape(str(settings["model"]))
        except UnknownModel as error:
            raise StartError(f"speculative_config: {error}") from None
    if method in _OF_TARGET:
        name = f"{target.name} {method}"
        return replace(target, name=name, layers=1, dense_layers=0, window_layers=0, linear_layers=0)
    return None


def _same(first: str, second: str) -> bool:
    return first == second or Path(first).resolve() == Path(second).resolve()
