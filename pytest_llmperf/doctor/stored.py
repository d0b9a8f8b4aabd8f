"""Baselines that a run on this machine would be compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.doctor.place import Finding, Place
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.results.baseline import StoredMeasurement
from pytest_llmperf.results.conditions import BUILD, kind_of
from pytest_llmperf.telemetry.hardware import Hardware

PART = "baselines"


def baselines(place: Place, versions: Mapping[str, str]) -> Iterator[Finding]:
    """How many there are for this kind, and what sets them apart from this machine.

    Args:
        versions: of the engines that are installed.
    """
    kind = stored_kind(place.hardware)
    try:
        stored_baselines = Store(place.root / place.settings.baselines_dir).read_all(kind)
    except BaselineError as error:
        yield Finding(PART, str(error), "correct or remove that file; git has what it was")
        return
    stored = [measurement for baseline in stored_baselines.values() for measurement in baseline.measurements.values()]
    if not stored:
        remedy = "create them: pytest suites --update-baselines-new"
        yield Finding(PART, f"none for {kind} in {place.settings.baselines_dir}/: comparisons will be NO_BASELINE",
                      "" if kind == "cpu" else remedy)  # a machine without a GPU may only emulate
        return
    rules = place.settings
    yield from _unknown_names(stored, "compare_across", rules.compare_across)
    yield from _unknown_names(stored, "same_build", rules.same_build)
    changes = [dict(_changes(baseline, place, versions)) for baseline in stored]
    matching = sum(not change for change in changes)
    yield Finding(PART, f"{matching} of {len(stored)} measurements for {kind} match this machine")
    counts = Counter(item for change in changes for item in change.items())
    for (field, text), count in counts.items():
        if field in BUILD and field not in rules.same_build:
            yield Finding(PART, f"{count} with {text}: another build, which comparisons name")
        else:
            yield Finding(PART, f"{count} with {text}: INCOMPARABLE",
                          'compare on the stored one, or start anew: --update-baselines --llmperf-accept "REASON"')


def _unknown_names(stored: Sequence[StoredMeasurement], setting: str, names: Sequence[str]) -> Iterator[Finding]:
    """Names in a setting that no baseline has; a note and no problem, as baselines of another kind may have them."""
    recorded = {field for baseline in stored for field in baseline.fingerprint}
    if unknown := [name for name in names if name not in recorded]:
        yield Finding(PART, f"{setting} names {', '.join(unknown)}, which no baseline has. Recorded fields are "
                            f"{', '.join(sorted(recorded))}")


def stored_kind(hardware: Hardware) -> str:
    """Which folder holds the baselines of a machine."""
    return kind_of({"hardware": hardware.kind, "gpu": hardware.gpus[0].name if hardware.gpus else "none"})


def _changes(
    stored: StoredMeasurement, place: Place, versions: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Fields whose stored value is not the value here, each with both values as text."""
    hardware, stored_conditions = place.hardware, stored.fingerprint
    engine = stored_conditions.get("engine", "")
    now = {"engine.version": versions.get(engine)}
    if hardware.gpus:
        now |= {"gpu": hardware.gpus[0].name, "driver": hardware.driver, "cuda": hardware.cuda}
    elif hardware.cpu is not None:
        now |= {"cpu": hardware.cpu.model, "cpu_cores": str(hardware.cpu.cores)}
    for field, value in now.items():
        both_recorded = None not in (value, stored_conditions.get(field))
        if both_recorded and value != stored_conditions[field] and field not in place.settings.compare_across:
            name = f"{engine} version" if field == "engine.version" else field
            yield field, f"{name} {stored_conditions[field]} (here {value})"
