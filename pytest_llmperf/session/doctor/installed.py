"""Engines with their versions, and models that need no download."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmperf.engines.adapters import check_configured, startable
from pytest_llmperf.engines.environment import Environment, find_environment
from pytest_llmperf.engines.models.registry import SHAPES
from pytest_llmperf.errors import ConfigError, EnvironmentMissing
from pytest_llmperf.session.doctor.finding import Finding
from pytest_llmperf.session.doctor.place import Place

HUB_PREFIX = "models--"


def engines(place: Place, versions: dict[str, str]) -> Iterator[Finding]:
    """Every engine that we can start.

    Args:
        versions: takes the version of each that was found.
    """
    try:
        check_configured(place.settings.engines)
    except ConfigError as error:
        yield Finding("engines", str(error), "correct [tool.llmperf.engines] in pyproject.toml or llmperf.toml")
    missing = []
    for engine in startable():
        try:
            environment = environment_at(place, engine)
        except EnvironmentMissing as error:
            missing.append((engine, str(error)))
            continue
        version = place.version_in(environment, engine)
        if version is None:
            yield Finding("engines", f"{engine} at {environment.origin}, version unknown",
                          f"see whether it is whole: {' '.join(environment.prefix)} must have {engine}'s metadata")
        else:
            versions[engine] = version
            yield Finding("engines", f"{engine} {version} at {environment.origin}")
    for engine, why in missing:
        found, _, remedy = why.partition(". ")
        needed = not versions or _configured(place, engine) is not None
        yield Finding("engines", found, remedy if needed else "")


def environment_at(place: Place, engine: str) -> Environment:
    """Where an engine is installed there.

    Raises:
        EnvironmentMissing: it is not.
    """
    return find_environment(engine, place.hardware.kind, _configured(place, engine), place.root)


def models(place: Place) -> Iterator[Finding]:
    """Shapes of the registry, which are built here, and what the hub's cache holds."""
    yield Finding("models", f"shapes, built when first used: {', '.join(SHAPES)}")
    names = [path.name for path in place.hub.iterdir() if path.is_dir()] if place.hub.is_dir() else []
    kept = sorted(name.removeprefix(HUB_PREFIX).replace("--", "/") for name in names if name.startswith(HUB_PREFIX))
    yield Finding("models", f"downloaded: {', '.join(kept) or 'none'} ({place.hub})")


def _configured(place: Place, engine: str) -> str | None:
    known = place.settings.engines
    return known.get(f"{engine}@{place.hardware.kind}", known.get(engine))
