"""Flags planted into every server of an engine, whatever a test says: would the suite notice that regression?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.model.engine import ENDPOINT, LAUNCHERS_OWN, REFERENCE, EngineSpec

FORM = "write it as ENGINE:FLAG or ENGINE:FLAG=VALUE, e.g. vllm:enforce-eager or vllm:max-num-batched-tokens=8192"


@dataclass(frozen=True, slots=True)
class PlantedFlag:
    """A flag that overrides the flag of the same name in an engine spec.

    Args:
        engine: name of the engine whose servers get the flag.
        name: the flag's name with underscores, as in an engine spec.
        value: the flag's value as JSON text.
        key: key inside a flag whose value is a JSON object; specs without such a flag remain unchanged. "" sets the
            whole flag.
        reference: whether the servers of the reference build get the flag, in place of all others.
    """

    engine: str
    name: str
    value: str
    key: str = ""
    reference: bool = False

    def __str__(self) -> str:
        side = f"{REFERENCE}:" if self.reference else ""
        return f"{self.engine}:{side}{self.name}{self.key and '.' + self.key}={self.value}"

    def over(self, spec: EngineSpec) -> EngineSpec:
        """The spec with this flag planted."""
        if spec.engine != self.engine:
            return spec
        value = json.loads(self.value)
        if not self.key:
            return spec.with_flags(**{self.name: value})
        old_value = flags_of(spec).get(self.name)
        if not isinstance(old_value, Mapping):
            return spec
        return spec.with_flags(**{self.name: {**old_value, self.key: value}})

    def stands_in(self, engine: str, flags: Mapping[str, object]) -> bool:
        """Whether the planted value is among the flags of a server of `engine`."""
        value = flags.get(self.name)
        if self.key:
            value = value.get(self.key) if isinstance(value, Mapping) else None
        return engine == self.engine and value == json.loads(self.value)


def planted_flag(text: str) -> PlantedFlag:
    """Parse a planted flag: "vllm:enforce-eager", "vllm:no-enable-prefix-caching", "vllm:num-gpu-blocks-override=5749",
    "vllm:speculative-config.synthetic_acceptance_length=2.0"; "vllm:reference:max-num-seqs=8" for the reference build.

    Raises:
        ConfigError: the text does not have this form, or the launcher sets the flag itself.
        SpecError: there is no such engine.
    """
    engine, colon, flag = text.partition(":")
    reference = flag.startswith(f"{REFERENCE}:")
    option, equals, value = flag.removeprefix(f"{REFERENCE}:").partition("=")
    root, dot, key = option.removeprefix("--").partition(".")
    name = root.replace("-", "_")
    if not (engine and colon and name.isidentifier()) or bool(dot) != bool(key) or bool(equals) != bool(value):
        raise ConfigError(f"--plant-flag {text!r}: {FORM}.")
    if engine == ENDPOINT or (adapter_of(engine) and name in LAUNCHERS_OWN):
        raise ConfigError(f"--plant-flag {text!r}: the flag cannot be planted, because the launcher sets the "
                          "flag itself or the engine is an attached server.")
    if equals:
        return PlantedFlag(engine, name, _as_json(value), key, reference)
    off = name.startswith("no_") and not key
    return PlantedFlag(engine, name.removeprefix("no_") if off else name, "false" if off else "true", key,
                       reference)


def with_planted_flags(spec: EngineSpec, planted: Sequence[PlantedFlag]) -> EngineSpec:
    """The spec as it is started: the later of two flags wins."""
    for flag in planted:
        spec = flag.over(spec)
    return spec


def _as_json(text: str) -> str:
    """JSON of the value: `text` is parsed as JSON (a number, true, an object) if possible, else taken as a string."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, allow_nan=False)
    except ValueError:
        return json.dumps(text)
