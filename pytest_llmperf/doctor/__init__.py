"""The checks of `llmperf doctor`: this machine, the engines, the models, the baselines. No check starts a server.

Each part returns findings. A finding that is a problem names its remedy.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmperf.doctor.installed import engines, models
from pytest_llmperf.doctor.machine import machine
from pytest_llmperf.doctor.place import Finding, Place
from pytest_llmperf.doctor.stored import baselines


def examine(place: Place) -> Iterator[Finding]:
    """Everything but the suites, which only pytest knows."""
    yield from machine(place)
    versions: dict[str, str] = {}
    yield from engines(place, versions)
    yield from models(place)
    yield from baselines(place, versions)
