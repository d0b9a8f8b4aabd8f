"""What an engine loads beside its model: a path, or an id on the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_llmperf.config.settings import expanded
from pytest_llmperf.engines.models import SHAPES

LOADED_BESIDE = (
    "speculative_draft_model_path", "tokenizer", "tokenizer_path", "hf_config_path", "lora_modules", "lora_paths",
)  # fmt: skip


def needs_hub(flags: Mapping[str, object], root: Path) -> bool:
    """Whether a flag names something to load that is neither on disk nor built by us."""
    draft = flags.get("speculative_config")
    named = [draft.get("model") if isinstance(draft, Mapping) else draft]
    for value in (flags.get(name) for name in LOADED_BESIDE):
        named += value if isinstance(value, list) else [value]
    # An adapter is written as "NAME=PATH", or as a dict with its path: vLLM's "path", SGLang's "lora_path".
    paths = [name.get("path", name.get("lora_path")) if isinstance(name, Mapping) else name for name in named]
    places = [str(path).rpartition("=")[2] for path in paths if path is not None]
    on_disk = [root / expanded(place) for place in places if place not in SHAPES]
    return not all(os.path.exists(place) for place in on_disk)  # noqa: PTH110 - a JSON text is too long for Path's
