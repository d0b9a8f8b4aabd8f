"""The conditions of a measurement: the hardware kind they name, and whether they equal those of a baseline."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.engine import serving_hardware
from pytest_llmperf.results.baseline import StoredMeasurement, StoredSession

EMULATED = "emulated-"
OTHER_GPU = "other-gpu"  # as in telemetry.hardware
# Formulas are compared metric by metric: a digest of all would void every baseline when one metric is added.
PER_METRIC = frozenset({"formulas"})
# Names, up to a dot, of what the first baselines did not record: one without them says nothing of them.
RECORDED_LATER = frozenset({"cuda", "cpu", "cpu_cores", "host_env"})


@dataclass(frozen=True, slots=True)
class Difference:
    """A condition that differs from the baseline. `stored` or `now` is None if the condition is absent."""

    field: str
    stored: str | None
    now: str | None

    def __str__(self) -> str:
        return f"{self.field}: {_value_text(self.stored)} stored, {_value_text(self.now)} now"


def kind_of(conditions: Mapping[str, str]) -> str:
    """The kind that names the folder: "h200", "cpu", "emulated-h200"; of a GPU without a marker its model, too.

    >>> kind_of({"hardware": "emulated h200"})
    'emulated-h200'
    >>> kind_of({"hardware": "other-gpu", "gpu": "NVIDIA L40S"})
    'other-gpu-nvidia-l40s'
    """
    hardware = conditions.get("hardware", "unknown").replace(" ", "-")
    model = conditions.get("gpu", "") if hardware == OTHER_GPU else ""
    return "-".join([hardware, *re.findall(r"[a-z0-9.]+", model.lower())])


def server_kind(conditions: Mapping[str, str]) -> str:
    """The hardware kind whose noise and margins hold: the kind of the serving machine, if known.

    >>> server_kind({"hardware": "cpu", "url": "http://10.0.0.5:8000"})
    'unknown'
    """
    return serving_hardware(kind_of(conditions), conditions.get("url"))


def digest(conditions: Mapping[str, str]) -> str:
    """Short digest of conditions: equal digests may be compared."""
    return hashlib.sha256(json.dumps(dict(conditions), sort_keys=True).encode()).hexdigest()[:16]


def formula_versions(conditions: Mapping[str, str]) -> dict[str, str]:
    """Name of a formula → its version under these conditions, e.g. "ttft" → "1"."""
    pairs = (one.rpartition(".") for one in conditions.get("formulas", "").split())
    return {name: version for name, _, version in pairs if name}


def fingerprint_of(conditions: Mapping[str, str]) -> dict[str, str]:
    """The part of a measurement's conditions that is stored."""
    return {field: value for field, value in conditions.items() if field not in PER_METRIC}


def formulas_of(metrics: Iterable[str]) -> dict[str, str]:
    """Metric → id of its formula.

    Raises:
        SloError: no such metric.
    """
    return {metric: find(metric).formula_id for metric in metrics}


def differences(
    stored: StoredMeasurement, conditions: Mapping[str, str], primaries: Collection[str], across: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Why a measurement under `conditions` cannot be compared with what is stored; empty where it can.

    Args:
        primaries: the metrics that would be compared: their formulas must be the same.
        across: fields that may differ (`compare_across`).
    """
    stored_conditions, now = stored.fingerprint, fingerprint_of(conditions)
    passed_over = {*across, *PER_METRIC, *unrecorded_conditions(stored_conditions, now)}
    changed = [
        Difference(field, stored_conditions.get(field), now.get(field))
        for field in sorted((stored_conditions.keys() | now.keys()) - passed_over)
        if stored_conditions.get(field) != now.get(field)
    ]
    formulas = formulas_of(metric for metric in primaries if metric in stored.formulas)
    changed += [
        Difference(f"formula of {metric}", stored.formulas[metric], formula)
        for metric, formula in formulas.items()
        if stored.formulas[metric] != formula
    ]
    return tuple(changed)


def is_comparable(session: StoredSession, across: Collection[str]) -> bool:
    """Whether a stored session was measured under its baseline's conditions, but for those that may differ.

    A condition that the session did not record is ignored.
    """
    def excused(field: str, value: str | None) -> bool:
        return field in across or (value is None and _recorded_later(field))

    return all(excused(field, value) for field, value in session.differs.items())


def comparable_sessions(stored: StoredMeasurement, across: Collection[str]) -> StoredMeasurement:
    """Without the sessions that were taken in across other conditions, unless these may still differ."""
    return replace(stored, sessions=tuple(session for session in stored.sessions if is_comparable(session, across)))


def unrecorded_conditions(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Conditions of `now` that were not recorded yet when `before` was: not absent then, but unknown."""
    return {field for field in now.keys() - before.keys() if _recorded_later(field)}


def _recorded_later(field: str) -> bool:
    return field.partition(".")[0] in RECORDED_LATER


def _value_text(value: str | None) -> str:
    return "absent" if value is None else value
