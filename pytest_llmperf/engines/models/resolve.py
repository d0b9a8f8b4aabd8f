"""Resolves the name of a model to the model argument of an engine."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_llmperf.config.settings import expanded
from pytest_llmperf.engines.models.model_files import tokenizer_files, write_weights
from pytest_llmperf.engines.models.registry import SHAPES, config_json
from pytest_llmperf.errors import InfrastructureError, SpecError, did_you_mean
from pytest_llmperf.process.places import lock_folder, writable
from pytest_llmperf.shapes import ModelShape

# Raise it when a tokenizer or weights change for the same shape: an older build must not be taken for a new one.
FORMAT = 2
SEED = 0
_SEEDED = ("tiny",)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Weights = Literal["dummy", "seeded", "checkpoint"]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model of a server start.

    Args:
        path_or_hub_id: the model argument of the engine.
        weights: "dummy" (the engine generates them), "seeded" (random weights of this project), "checkpoint" (given).
        shape: shape in the registry; None for a model outside the registry.
        name: name for messages and fingerprints, without machine paths.
        longest_sequence: tokens of the longest sequence; None if the model's configuration sets no limit. Engines read
            rope scaling in ways of their own, so a folder's model with rope scaling has no limit here.
        vocabulary_size: number of tokens in the vocabulary; None if it is unknown, as of a hub id.
    """

    path_or_hub_id: str
    weights: Weights
    shape: ModelShape | None
    name: str
    longest_sequence: int | None = None
    vocabulary_size: int | None = None


def resolve_model(name_or_path: str, cache_dir: Path, root: Path = Path()) -> ResolvedModel:
    """Find or build a model.

    A name of the registry is built once under `cache_dir`; an existing path, relative to `root`, must be a model
    folder; "org/name" that is not on disk goes to the engine as a hub id.

    Raises:
        SpecError: `name_or_path` is none of these.
        InfrastructureError: the model cannot be built there.
    """
    shape = SHAPES.get(name_or_path)
    if shape is not None:
        seeded = shape.name in _SEEDED
        return ResolvedModel(str(_built(shape, cache_dir)), "seeded" if seeded else "dummy", shape, shape.name,
                             shape.max_positions, shape.vocab)
    path = (root / expanded(name_or_path)).absolute()
    if name_or_path and _is_model(path, name_or_path):
        return _from_folder(path)
    if _HUB_ID.fullmatch(name_or_path):
        return ResolvedModel(name_or_path, "checkpoint", None, name_or_path)
    raise SpecError(_unknown(name_or_path))


def _from_folder(path: Path) -> ResolvedModel:
    """The model of a folder, with the limits that its configuration states."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the engine names the problem of its file
        config = None
    stated = config if isinstance(config, dict) else {}
    scaled = stated.get("rope_scaling") or stated.get("rope_parameters")
    longest, size = None if scaled else stated.get("max_position_embeddings"), stated.get("vocab_size")
    return ResolvedModel(str(path), "checkpoint", None, path.name,
                         longest if type(longest) is int else None, size if type(size) is int else None)


def _is_model(path: Path, name: str) -> bool:
    """Whether the path is a model folder. A path that exists but is no model folder is refused."""
    try:
        if not path.exists():
            return False
        has_config = (path / "config.json").is_file()
    except OSError as error:  # a folder that one may not enter, a name that no file can have
        raise SpecError(f"the model {name!r} cannot be looked at: {error}. Give a folder that this user can read, a "
                        "shape or a hub id.") from error
    if not has_config:
        raise SpecError(f"{name!r} exists but holds no config.json, so it is no model folder. Give the "
                        f"folder that has config.json and a tokenizer in it.")
    return True


def _unknown(name: str) -> str:
    words = re.split(r"[-_.]", name.lower())
    of_precision = [shape.name for shape in SHAPES.values()
                    if shape.quantization is None or {shape.quantization.method, "int4", "4bit"}.intersection(words)]
    return (f"no model {name!r}: not a shape of the registry, not a folder, and not a hub id (\"org/name\")."
            f"{did_you_mean(name.lower(), of_precision, cutoff=0.5)} Shapes: {', '.join(SHAPES)}.")


def _built(shape: ModelShape, cache_dir: Path) -> Path:
    """The folder of a shape, built if it is not there; a build that was cut off is begun again."""
    from filelock import FileLock

    definition = f"{FORMAT}\n{SEED if shape.name in _SEEDED else 'dummy'}\n{config_json(shape)}"
    name = f"{shape.name}-{hashlib.sha256(definition.encode()).hexdigest()[:12]}"
    if (cache_dir / name).is_dir():
        return (cache_dir / name).absolute()
    cache_dir = cache_dir if writable(cache_dir) else lock_folder("llmperf-models")
    folder = cache_dir / name
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(cache_dir / f".{folder.name}.lock"):
            if not folder.is_dir():
                building = cache_dir / f".{folder.name}.building"
                shutil.rmtree(building, ignore_errors=True)
                _write(shape, building)
                building.rename(folder)
    except OSError as error:
        raise InfrastructureError(f"The model {shape.name} cannot be built: {error}. Free space there, or name another "
                                  "folder in the settings: cache_dir.") from error
    return folder.absolute()


def _write(shape: ModelShape, folder: Path) -> None:
    folder.mkdir()
    for name, text in {"config.json": config_json(shape), **tokenizer_files(shape)}.items():
        (folder / name).write_text(text, encoding="utf-8")
    if shape.name in _SEEDED:
        write_weights(shape, folder / "model.safetensors", SEED)
