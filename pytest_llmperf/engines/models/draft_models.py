"""Resolves draft models in engine flags, and finds flags whose model, tokenizer or adapter only the hub has."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_llmperf.config.settings import expanded
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.models import SHAPES, ResolvedModel
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import EnvironmentMissing, SpecError
from pytest_llmperf.model.engine import EngineSpec

#: Method of vLLM's speculative_config → the module that the engine imports for this method, and its requirement.
METHOD_MODULES = {"suffix": ("arctic_inference", "arctic-inference==0.1.1")}
PATHS = (".", "/", "~")  # a name with one of these prefixes is a path, never a hub id


def with_draft_resolved(
    spec: EngineSpec, target: ResolvedModel, model_of: Callable[[str], ResolvedModel], root: Path
) -> EngineSpec:
    """The spec with the draft model's name replaced by a path, if the draft is a shape or a folder.

    Any other name, such as a hub id or "ngram", is passed to the engine unchanged.

    Args:
        spec: spec of the target model.
        target: the target model.
        model_of: resolves the name of a model: see `resolve_model`.
        root: project root, for relative paths.

    Raises:
        SpecError: the draft model is given as a path that contains no model, or its vocabulary has another size than
            the target's, so that its tokens would mean something else.
        InfrastructureError: the shape of the draft model cannot be built.
    """
    adapter = adapter_of(spec.engine)
    name = adapter.draft_model(spec)
    if name is None or not _is_local(name, root):
        return spec
    draft = model_of(name)
    sizes = draft.vocabulary_size, target.vocabulary_size
    if None not in sizes and sizes[0] != sizes[1]:
        raise SpecError(f"the draft model {name} has a vocabulary of {sizes[0]} tokens, and its target {spec.model} "
                        f"one of {sizes[1]}: a draft must be made of the target's tokens. Nothing was started. Name a "
                        "draft model that was trained for this target.")
    return adapter.with_draft_model(spec, draft.path_or_hub_id)


def check_method_module(spec: EngineSpec, has_module: Callable[[str], bool | None], origin: str) -> None:
    """Refuse a draft method whose package the engine's environment lacks. The engine would end with an ImportError
    half a minute after its start.

    Args:
        spec: spec of the target model.
        has_module: whether the environment has a module; None if this is not known.
        origin: where the environment was found, for people.

    Raises:
        EnvironmentMissing: the package is not installed there.
    """
    config = flags_of(spec).get("speculative_config")
    method = config.get("method") if isinstance(config, dict) else None
    module, requirement = METHOD_MODULES.get(method, ("", "")) if isinstance(method, str) else ("", "")
    if module and has_module(module) is False:
        raise EnvironmentMissing(
            f"{spec.engine}({spec.model!r}): the draft method {method!r} needs the package "
            f"{requirement.partition('=')[0]}, and the environment ({origin}) does not have it. No server was started. "
            f"Install it there: pip install {requirement}."
        )


def _is_local(name: str, root: Path) -> bool:
    on_disk = os.path.isfile(root / expanded(name) / "config.json")  # noqa: PTH113 - Path's raises for some texts
    return name in SHAPES or on_disk or name.startswith(PATHS)


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
