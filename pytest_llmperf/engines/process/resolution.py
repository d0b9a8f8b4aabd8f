"""Finds what the names in a spec stand for on this machine, once a session: model, draft model and environment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.adapters import adapter_of, package_of
from pytest_llmperf.engines.deployment.emulated import emulated_words
from pytest_llmperf.engines.models import ResolvedModel, resolve_model
from pytest_llmperf.engines.models.draft_models import check_method_module, with_draft_resolved
from pytest_llmperf.engines.process.environment import Environment, Installations
from pytest_llmperf.engines.process.installed import (
    check_flags,
    check_variables,
    has_module,
    installed_version,
    known_flags,
)
from pytest_llmperf.engines.process.variables import inherited_environment
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.process.places import check_shared_memory
from pytest_llmperf.releases.stored import build_of


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a server of one spec is started from.

    Args:
        spec: the spec with the folder of a local draft model in place of the draft's name.
        model: the model to load.
        environment: where the engine is installed; None if the emulator stands in for the engine, whose command
            differs between starts.
    """

    spec: EngineSpec
    model: ResolvedModel
    environment: Environment | None


class Resolver:
    """Resolves specs. Each model, environment and spec is looked up once; an error is not stored.

    Args:
        settings: places of engines, and the folder where models are built.
        root: project root, for relative places.
        emulated: whether the emulator stands in for every engine.
    """

    def __init__(self, settings: Settings, root: Path, *, emulated: bool) -> None:
        self._settings = settings
        self._root = root
        self._emulated = emulated
        self._models_dir = root / settings.cache_dir
        self.model: Callable[[str], ResolvedModel] = cache(lambda name: resolve_model(name, self._models_dir, root))
        self.environment = cache(self._environment)
        self._resolved = cache(self._of)

    def _environment(self, installed_as: str, kind: str) -> Environment:
        installations = Installations(self._settings.engines, self._root, kind)
        return installations.find_environment(installed_as, package_of(installed_as.partition(":")[0]))

    def of(self, spec: EngineSpec) -> Resolution:
        """What a server of this spec is started from on its hardware kind.

        Raises:
            SpecError: there is no such model or flag, or the emulator cannot stand in for this engine.
            EnvironmentMissing: the engine, or a package that a flag needs, is not installed.
            InfrastructureError: this machine has no shared memory for the processes of an engine.
        """
        return self._resolved(spec, spec.kind or "cpu")  # equal specs may have different kinds

    def _of(self, spec: EngineSpec, kind: str) -> Resolution:
        if self._emulated:
            _check_emulated(spec)
        model = self.model(spec.model)
        resolved = with_draft_resolved(spec, model, self.model, self._root)
        if self._emulated:
            return Resolution(resolved, model, None)
        environment = self.environment(spec.installed_as, kind)
        if environment.is_container and spec.lmcache is not None:
            raise SpecError(f"{spec}: LMCache cannot run beside an engine in a container. Use an environment with "
                            "both instead of the image.")
        if not environment.is_container:
            check_shared_memory()
        self._check_flags(spec, environment)
        if spec.env and (version := installed_version(environment, spec.engine)):
            check_variables(spec, version)
        check_method_module(spec, partial(has_module, environment), environment.origin)
        return Resolution(resolved, model, environment)

    def _check_flags(self, spec: EngineSpec, environment: Environment) -> None:
        """Refuse unknown flags, if a list of the engine's flags exists.

        The flags of released versions are stored. A flag that is not among them may be an addition of a changed build,
        so the build's own parser decides. The question imports the engine, which takes 10 s and more.
        """
        if not spec.flags:
            return
        version = installed_version(environment, spec.engine)
        with suppress(SpecError):
            if (stored := build_of(spec.engine, version)) is not None:
                check_flags(spec, stored.options())
                return
        env = inherited_environment(environment, self._root)
        flags = known_flags(environment, spec.engine, adapter_of(spec.engine).program, env, self._models_dir)
        if flags is not None:
            check_flags(spec, flags, version)


def _check_emulated(spec: EngineSpec) -> None:
    """Refuse a spec that no emulator can stand in for, and a flag that resembles a flag of the emulator."""
    if not adapter_of(spec.engine).emulated:
        raise SpecError(f"{spec}: the emulator schedules as vLLM and SGLang do, and does not know {spec.engine}. Drop "
                        "--emulate.")
    emulated_words(spec)
    check_variables(spec, None)
    if spec.flags:
        from pytest_llmperf.emulator.build import emulated_flags

        check_flags(spec, emulated_flags(spec.engine), near_only=True)
