"""A draft model is named like any model: a shape of the registry or a folder of the project."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_llmperf.config.settings import expanded
from pytest_llmperf.engines.models import SHAPES, resolve_model

PATHS = (".", "/", "~")  # what begins so is a path, and no id on the hub


def with_draft_resolved(flags: Mapping[str, object], models_dir: Path, root: Path) -> dict[str, object]:
    """Flags of an engine whose draft model, vLLM's or SGLang's, is given as its own model is: see `resolve_model`.

    Raises:
        SpecError: the draft is written as a path, and no model is there.
        InfrastructureError: its shape cannot be built.
    """
    found = dict(flags)
    config, path = found.get("speculative_config"), found.get("speculative_draft_model_path")
    if isinstance(config, dict) and isinstance(name := config.get("model"), str):
        found["speculative_config"] = config | {"model": _resolved(name, models_dir, root)}
    if isinstance(path, str):
        found["speculative_draft_model_path"] = _resolved(path, models_dir, root)
    return found


def _resolved(name: str, models_dir: Path, root: Path) -> str:
    """Anything but a shape and a path is the engine's to read: an id on the hub, a word such as "ngram"."""
    on_disk = os.path.isfile(root / expanded(name) / "config.json")  # noqa: PTH113 - Path's raises for some texts
    known = name in SHAPES or on_disk or name.startswith(PATHS)
    return resolve_model(name, models_dir, root).path_or_hub_id if known else name
