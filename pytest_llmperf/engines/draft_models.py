"""Further models that engine flags name: draft models, tokenizers and adapters, from the registry, disk or hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_llmperf.config.settings import expanded
from pytest_llmperf.engines.models import SHAPES, resolve_model
from pytest_llmperf.engines.models.resolve import vocabulary_size
from pytest_llmperf.errors import SpecError

PATHS = (".", "/", "~")  # a name with one of these prefixes is a path, never a hub id


def with_draft_resolved(flags: Mapping[str, object], models_dir: Path, root: Path) -> dict[str, object]:
    """The engine's flags with the draft model's name replaced by a path or hub id: see `resolve_model`.

    Raises:
        SpecError: the draft model is given as a path that contains no model.
        InfrastructureError: the shape of the draft model cannot be built.
    """
    resolved = dict(flags)
    config, path = resolved.get("speculative_config"), resolved.get("speculative_draft_model_path")
    if isinstance(config, dict) and isinstance(name := config.get("model"), str):
        resolved["speculative_config"] = config | {"model": _resolved(name, models_dir, root)}
    if isinstance(path, str):
        resolved["speculative_draft_model_path"] = _resolved(path, models_dir, root)
    return resolved


def check_draft_vocabulary(model: str, flags: Mapping[str, object], root: Path) -> None:
    """Refuse a draft model whose vocabulary differs from the target model's: its tokens would mean something else.

    Raises:
        SpecError: the vocabularies of the two models have different sizes.
    """
    config = flags.get("speculative_config")
    draft = config.get("model") if isinstance(config, Mapping) else flags.get("speculative_draft_model_path")
    if not isinstance(draft, str):
        return
    sizes = [vocabulary_size(name, root) for name in (model, draft)]
    if None not in sizes and sizes[0] != sizes[1]:
        raise SpecError(f"the draft model {draft} has a vocabulary of {sizes[1]} tokens, and its target {model} one of "
                        f"{sizes[0]}: a draft must be made of the target's tokens. Nothing was started. Name a draft "
                        "model that was trained for this target.")


def _resolved(name: str, models_dir: Path, root: Path) -> str:
    """A shape or path is resolved; any other name, such as a hub id or "ngram", is passed to the engine unchanged."""
    on_disk = os.path.isfile(root / expanded(name) / "config.json")  # noqa: PTH113 - Path's raises for some texts
    is_local = name in SHAPES or on_disk or name.startswith(PATHS)
    return resolve_model(name, models_dir, root).path_or_hub_id if is_local else name


LOADED_BESIDE = (
    "speculative_draft_model_path", "tokenizer", "tokenizer_path", "hf_config_path", "lora_modules", "lora_paths",
)  # fmt: skip


def needs_hub(flags: Mapping[str, object], root: Path) -> bool:
    """Whether a flag names a file or model that is neither on disk nor a shape of the registry."""
    draft = flags.get("speculative_config")
    named = [draft.get("model") if isinstance(draft, Mapping) else draft]
    for value in (flags.get(name) for name in LOADED_BESIDE):
        named += value if isinstance(value, list) else [value]
    # An adapter is written as "NAME=PATH", or as a dict with its path: vLLM's "path", SGLang's "lora_path".
    paths = [name.get("path", name.get("lora_path")) if isinstance(name, Mapping) else name for name in named]
    places = [str(path).rpartition("=")[2] for path in paths if path is not None]
    on_disk = [root / expanded(place) for place in places if place not in SHAPES]
    return not all(os.path.exists(place) for place in on_disk)  # noqa: PTH110 - a JSON text is too long for Path's
