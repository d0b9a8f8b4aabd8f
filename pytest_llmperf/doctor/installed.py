"""Engines with their versions, and models that need no download."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmperf.doctor.place import Finding, Place
from pytest_llmperf.engines.adapters import check_configured, package_of, startable
from pytest_llmperf.engines.models.registry import SHAPES
from pytest_llmperf.engines.process.environment import SHARED, Environment, Installations
from pytest_llmperf.errors import ConfigError, EnvironmentMissing
from pytest_llmperf.releases.stored import untested

HUB_PREFIX = "models--"


def engines(place: Place, versions: dict[str, str]) -> Iterator[Finding]:
    """Every engine that we can start and that has an environment of its own, and every named installation.

    Args:
        versions: takes the version of each that was found.
    """
    try:
        check_configured(place.settings.engines)
    except ConfigError as error:
        yield Finding("engines", str(error), "correct [tool.llmperf.engines] in pyproject.toml or llmperf.toml")
    missing = []
    suffix = f"@{place.hardware.kind}"
    configured = {name.removesuffix(suffix) for name in place.settings.engines if "@" not in name.removesuffix(suffix)}
    own_names = sorted(name for name in configured if name.partition(":")[0] in startable() and ":" in name)
    for name in (*(engine for engine in startable() if engine not in SHARED), *own_names):
        engine = name.partition(":")[0]
        try:
            environment = environment_at(place, name)
        except EnvironmentMissing as error:
            missing.append((name, str(error)))
            continue
        version = place.version_in(environment, engine)
        if version is None:
            yield Finding("engines", f"{name} at {environment.origin}, version unknown",
                          f"see whether it is whole: {' '.join(environment.prefix)} must have {engine}'s metadata")
        else:
            versions[name] = version
            note = untested(engine, version)
            yield Finding("engines", f"{name} {version} at {environment.origin}{note and f' ({note})'}")
    for name, why in missing:
        fact, _, remedy = why.partition(". ")
        measures_gpu = place.hardware.kind != "cpu"  # without a GPU, --emulate needs no engine
        needed = name in configured or (measures_gpu and not versions)
        yield Finding("engines", fact, remedy if needed else "")
    if not versions:
        yield Finding("engines", "no engine can start here: only --emulate KIND and endpoint(URL, …) can be measured")


def environment_at(place: Place, name: str) -> Environment:
    """The environment of an engine or of a named installation, such as "vllm" or "vllm:old".

    Raises:
        EnvironmentMissing: the engine is not installed.
    """
    installations = Installations(place.settings.engines, place.root, place.hardware.kind)
    return installations.find_environment(name, package_of(name.partition(":")[0]))


def models(place: Place) -> Iterator[Finding]:
    """Shapes of the registry, which are built here, and what the hub's cache holds."""
    yield Finding("models", f"shapes, built when first used: {', '.join(SHAPES)}")
    names = [path.name for path in place.hub.iterdir() if path.is_dir()] if place.hub.is_dir() else []
    model_names = sorted(
        name.removeprefix(HUB_PREFIX).replace("--", "/") for name in names if name.startswith(HUB_PREFIX)
    )
    yield Finding("models", f"downloaded: {', '.join(model_names) or 'none'} ({place.hub})")
