"""Builders of engine specs: the names that a suite imports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.engine import EngineSpec

Flag = str | int | float | bool | None | Mapping[str, object] | list[object] | tuple[object, ...]


def vllm(model: str, *, env: Mapping[str, str] | None = None, **flags: Flag) -> EngineSpec:
    """A vLLM server to start.

    Args:
        model: a shape name ("llama-3.1-8b", "tiny", …), a path, or a hub id.
        env: further environment variables of the server.
        flags: vLLM's own flags with underscores: `max_num_batched_tokens=1024`, `enable_prefix_caching=False`
            (→ `--no-enable-prefix-caching`), `speculative_config={"method": "ngram", …}`. They are passed through;
            vLLM refuses what it does not know. None leaves a flag out.
    """
    return build_spec("vllm", model, env or {}, flags)


def endpoint(url: str, *, model: str) -> EngineSpec:
    """An OpenAI-compatible server that is already running; it is measured and never started, stopped or reset.

    Args:
        url: e.g. "http://10.0.0.5:8000"; a path is kept as a prefix.
        model: the id under which it serves.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError(
            f"endpoint({url!r}): this is not an http(s) URL with a host. "
            'Write it as endpoint("http://HOST:PORT", model="ID").'
        )
    return EngineSpec(engine="endpoint", model=model, url=url.rstrip("/"))


def build_spec(engine: str, model: str, env: Mapping[str, str], flags: Mapping[str, Flag]) -> EngineSpec:
    """The spec of an engine that we start; equal arguments in any order give equal specs."""
    if not isinstance(model, str) or not model:
        raise SpecError(f"{engine}({model!r}): the model is a shape name, a path or a hub id, as text.")
    return EngineSpec(
        engine=engine,
        model=model,
        flags=tuple(
            sorted((name, _as_json(engine, name, value)) for name, value in flags.items() if value is not None)
        ),
        env=tuple(sorted((str(name), str(value)) for name, value in env.items())),
    )


def with_flags(spec: EngineSpec, **flags: Flag) -> EngineSpec:
    """The same spec with some flags changed; None removes one."""
    merged = {name: json.loads(value) for name, value in spec.flags} | flags
    return replace(spec, flags=build_spec(spec.engine, spec.model, {}, merged).flags)


def flags_of(spec: EngineSpec) -> dict[str, object]:
    """Flag values as Python objects."""
    return {name: json.loads(value) for name, value in spec.flags}


def command_line(flags: Mapping[str, object]) -> list[str]:
    """Flags as argparse-style arguments: True → --x, False → --no-x, dict → JSON, list → --x a b."""
    argv: list[str] = []
    for name, value in flags.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            argv.append(option)
        elif value is False:
            argv.append("--no-" + name.replace("_", "-"))
        elif isinstance(value, Mapping):
            argv += [option, json.dumps(value, sort_keys=True)]
        elif isinstance(value, list | tuple):
            argv += [option, *(str(item) for item in value)]
        else:
            argv += [option, str(value)]
    return argv


def _as_json(engine: str, name: str, value: Flag) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{engine}(…, {name}={value!r}): a flag is text, a number, a boolean, or a dict or list of them ({error})."
        ) from error
