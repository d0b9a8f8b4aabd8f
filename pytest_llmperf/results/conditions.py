"""The conditions of a measurement, the build under test among them, and how both compare with a baseline.

Each field that a measurement records belongs to one of two classes. The build under test is the engine's version, the
driver, CUDA, the installation, and each value that the engine resolved without a flag of the test. The build may differ
from the build of a baseline, and the comparison is about this difference. Every other field is a condition: it must be
equal.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.kinds import OTHER_GPU
from pytest_llmperf.metrics.energy import COST
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.engine import serving_hardware
from pytest_llmperf.model.ranks import DATA, PIPELINE, TENSOR
from pytest_llmperf.results.baseline import StoredMeasurement, StoredSession

EMULATED = "emulated-"
#: Condition of an endpoint whose test declares the hardware kind. Nobody sees such a GPU.
DECLARED = "hardware_declared"
PLANTED = "planted"  # condition of runs whose servers had a regression planted into them
#: Condition of sessions with a stated price of a GPU hour: "2.5 USD 2026-11-01".
PRICE = "gpu_hour_price"
#: Condition of sessions in which several test processes measure on one host at the same time, each on its GPUs.
SHARED_BY = "host_shared_by"
# Formulas are compared metric by metric: a digest of all would void every baseline when one metric is added. The price
# is a part of the formula of a cost.
PER_METRIC = frozenset({"formulas", PRICE})
#: Characters of a workload that a baseline stores as text: recorded times can be thousands of numbers.
MOST_WORKLOAD = 1000
NO_CONDITIONS: Mapping[str, str] = MappingProxyType({})
# Names, up to a dot, of what the first baselines did not record: one without them says nothing of them.
RECORDED_LATER = frozenset({"cuda", "cpu", "cpu_cores", "host_env", "replicas", DECLARED})
VERSION = "engine.version"
ROUTER_VERSION = "router.version"  # of the router of a deployment
# FlashInfer is a package of the installation; the other variables of `host_env` are settings of the host.
BUILD = frozenset({
    VERSION, ROUTER_VERSION, "engine.lmcache.version", "driver", "cuda", "installation",
    "host_env.VLLM_USE_FLASHINFER_SAMPLER", "host_env.SGLANG_IS_FLASHINFER_AVAILABLE",
})  # fmt: skip
RESOLVED = "engine."
#: A specification sets all values of LMCache.
LMCACHE = "engine.lmcache."
# Resolved value → flags that ask for that value, where a flag has another name than the value.
ASKED_BY: Mapping[str, tuple[str, ...]] = {
    "cache_dtype": ("kv_cache_dtype",),
    "enforce_eager": ("compilation_config", "cudagraph_mode", "optimization_level"),
    "block_size": ("page_size",),
    "max_num_batched_tokens": ("chunked_prefill_size",),
    "tp_size": TENSOR,
    "pp_size": PIPELINE,
    "dp_size": DATA,
}


@dataclass(frozen=True, slots=True)
class FieldRules:
    """Which fields may differ between a measurement and its baseline.

    Args:
        compare_across: conditions that may differ.
        same_build: fields of the build that must be equal.
    """

    compare_across: tuple[str, ...] = ()
    same_build: tuple[str, ...] = ()

    def may_differ(self, field: str, flags: Collection[str]) -> bool:
        """Whether a comparison may cross a difference in this field.

        Args:
            flags: names of the flags that the test asked for.
        """
        return field in self.compare_across or (is_of_build(field, flags) and field not in self.same_build)


#: The whole build may differ and no condition.
DEFAULT_RULES = FieldRules()


def field_rules(settings: Settings) -> FieldRules:
    """The rules of a project.

    Raises:
        ConfigError: a name in `compare_across` or `same_build` belongs to the other class.
    """
    problems = [
        f"compare_across names {field}, which belongs to the build under test and may differ. Leave the name out"
        for field in settings.compare_across if field in BUILD
    ]
    for field in settings.same_build:
        if field not in BUILD and not field.startswith(RESOLVED):
            names = {part: name for name in (*sorted(BUILD), VERSION) for part in (name, name.rpartition(".")[2])}
            close = get_close_matches(field, names, n=1)
            hint = f"Did you mean {names[close[0]]}?" if close else f"Known: {', '.join(sorted(BUILD))}, {RESOLVED}…"
            problems.append(f"same_build names {field}, which is no field of the build. {hint}")
    if problems:
        raise ConfigError("; ".join(problems))
    return FieldRules(settings.compare_across, settings.same_build)


def is_of_build(field: str, flags: Collection[str]) -> bool:
    """Whether a field belongs to the build under test.

    Args:
        flags: names of the flags that the test asked for.

    >>> is_of_build("engine.max_num_seqs", flags=()), is_of_build("engine.max_num_seqs", flags=("max_num_seqs",))
    (True, False)
    """
    return field in BUILD or is_default(field, flags)


def is_default(field: str, flags: Collection[str] = ()) -> bool:
    """Whether a field is a value that the engine resolved without a flag that asks for this value."""
    if field in BUILD or not field.startswith(RESOLVED) or field.startswith(LMCACHE):
        return False
    name = field.removeprefix(RESOLVED)
    return not {name, *ASKED_BY.get(name, ())} & set(flags)


def stored_flags(conditions: Mapping[str, str]) -> dict[str, object]:
    """The flags of a measurement, from its conditions; none from a text that somebody wrote by hand and that is no JSON
    object."""
    try:
        flags = json.loads(conditions.get("flags", "{}"))
    except ValueError:
        return {}
    return flags if isinstance(flags, dict) else {}


def requested_flags(*fingerprints: Mapping[str, str]) -> set[str]:
    """Names of the flags that a test asked for, from the conditions of either side of a comparison."""
    return {name for fingerprint in fingerprints for name in stored_flags(fingerprint)}


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
    if DECLARED in conditions:
        return kind_of(conditions)
    return serving_hardware(kind_of(conditions), conditions.get("url"))


def unseen_gpu(conditions: Mapping[str, str]) -> str | None:
    """The GPU kind that a test declares for an endpoint, whose telemetry is not seen; None for any other server."""
    kind = conditions.get(DECLARED)
    return None if kind in (None, "cpu") else kind


def digest(conditions: Mapping[str, str]) -> str:
    """Short digest of conditions: equal digests may be compared."""
    return hashlib.sha256(json.dumps(dict(conditions), sort_keys=True).encode()).hexdigest()[:16]


def formula_versions(conditions: Mapping[str, str]) -> dict[str, str]:
    """Name of a formula → its version under these conditions, e.g. "ttft" → "1"; of a cost with the price."""
    pairs = (version_text.rpartition(".") for version_text in conditions.get("formulas", "").split())
    return {name: _with_price(name, version, conditions) for name, _, version in pairs if name}


def _with_price(metric: str, formula: str, conditions: Mapping[str, str]) -> str:
    """A formula's id or version. Two costs are comparable only at the same price, currency and date."""
    return f"{formula} at {conditions.get(PRICE, 'no price')}" if metric == COST else formula


def fingerprint_of(conditions: Mapping[str, str]) -> dict[str, str]:
    """The part of a measurement's conditions that is stored."""
    return {field: value for field, value in conditions.items() if field not in PER_METRIC}


def formulas_of(metrics: Iterable[str], conditions: Mapping[str, str] = NO_CONDITIONS) -> dict[str, str]:
    """Metric → id of its formula, of a cost with the price.

    Raises:
        SloError: no such metric.
    """
    return {metric: _with_price(metric, find(metric).formula_id, conditions) for metric in metrics}


def differences(
    stored: StoredMeasurement, conditions: Mapping[str, str], primaries: Collection[str],
    rules: FieldRules = DEFAULT_RULES, workload: str = "",
) -> tuple[Difference, ...]:
    """Why a measurement under `conditions` cannot be compared with what is stored; empty if it can.

    Args:
        primaries: the metrics that would be compared: their formulas must be the same.
        rules: which fields may differ.
        workload: the workload of the measurement as text.
    """
    flags = requested_flags(stored.fingerprint, conditions)
    changed = [each for each in _changed_fields(stored.fingerprint, conditions)
               if not rules.may_differ(each.field, flags)]
    changed = [_in_words(each, stored, _without_search(workload, conditions)) if each.field == "workload" else each
               for each in changed]
    formulas = formulas_of((metric for metric in primaries if metric in stored.formulas), conditions)
    changed += [
        Difference(f"formula of {metric}", stored.formulas[metric], formula)
        for metric, formula in formulas.items()
        if stored.formulas[metric] != formula
    ]
    return tuple(changed)


def _in_words(digests: Difference, stored: StoredMeasurement, now: str) -> Difference:
    """The difference of two workloads: the arguments that differ, or that a file has another content."""
    if stored.workload is not None:
        contents = f"{now} with content {digests.stored}", f"content {digests.now}"
        return Difference(digests.field, *(changed_arguments(stored.workload, now) or contents))
    commit = (stored.sessions[-1].commit or "").removesuffix("-dirty")
    of_commit = f"as in commit {commit} (git diff {commit} shows what changed)" if commit else digests.stored
    return Difference(digests.field, of_commit, now or digests.now)


def changed_arguments(before: str, after: str) -> tuple[str, str] | None:
    """The arguments in which two workloads differ, each side as text; None for equal texts.

    The whole texts where the calls are of different functions.

    >>> changed_arguments("closed_loop(input=512, output=8)", "closed_loop(input=520, output=8)")
    ('input=512', 'input=520')
    """
    if before == after:
        return None
    try:
        first, second = (ast.parse(text, mode="eval").body for text in (before, after))
    except SyntaxError:
        return before, after
    rows = list(_changed(first, second, "")) if _is_same_call(first, second) else [(before, after)]
    return ", ".join(was for was, _ in rows), ", ".join(now for _, now in rows)


def _changed(first: ast.expr, second: ast.expr, prefix: str) -> Iterator[tuple[str, str]]:
    """Each argument that two calls of one function do not share, as "name=value" or "no name"."""
    before, after = ({keyword.arg: keyword.value for keyword in call.keywords} if isinstance(call, ast.Call) else {}
                     for call in (first, second))
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if was is not None and now is not None and _is_same_call(was, now):
            yield from _changed(was, now, f"{prefix}{name}.")
        elif (texts := [value and f"{prefix}{name}={ast.unparse(value)}" for value in (was, now)])[0] != texts[1]:
            yield texts[0] or f"no {prefix}{name}", texts[1] or f"no {prefix}{name}"


def _is_same_call(first: ast.expr, second: ast.expr) -> bool:
    """Whether both are calls of one function that differ in named arguments alone."""
    heads = [ast.unparse(ast.Call(call.func, call.args, [])) for call in (first, second) if isinstance(call, ast.Call)]
    return len(heads) == 2 and heads[0] == heads[1]


def stored_workload(workload: str, conditions: Mapping[str, str]) -> str | None:
    """The text of a workload as a baseline stores it. A text beyond `MOST_WORKLOAD` characters gives None."""
    text = _without_search(workload, conditions)
    return text if len(text) <= MOST_WORKLOAD else None


def _without_search(workload: str, conditions: Mapping[str, str]) -> str:
    """A workload without the terms of its search, which are a condition of their own."""
    return workload.removesuffix(f", {conditions.get('search')}")


def build_differences(stored: Mapping[str, str], now: Mapping[str, str]) -> tuple[Difference, ...]:
    """Fields in which one build is not the other, from the conditions of two measurements."""
    flags = requested_flags(stored, now)
    return tuple(each for each in _changed_fields(stored, now) if is_of_build(each.field, flags))


def session_conditions(stored: StoredMeasurement, session: StoredSession) -> dict[str, str]:
    """Build and conditions of a stored session, as far as they were recorded."""
    return {name: value for name, value in {**stored.fingerprint, **session.differs}.items() if value is not None}


def build_changes(
    stored: StoredMeasurement, sessions: Iterable[StoredSession], conditions: Mapping[str, str]
) -> dict[str, list[str | None]]:
    """Field of the build → its other values in these sessions, oldest first, and then the measurement's value."""
    other_values: dict[str, list[str | None]] = {}
    for session in sessions:
        for each in build_differences(session_conditions(stored, session), conditions):
            values = other_values.setdefault(each.field, [])
            values += [] if each.stored in values else [each.stored]
    return {field: [*values, conditions.get(field)] for field, values in other_values.items()}


def _changed_fields(stored: Mapping[str, str], conditions: Mapping[str, str]) -> list[Difference]:
    """Every field that differs, sorted; formulas are compared metric by metric elsewhere."""
    now = fingerprint_of(conditions)
    names = (stored.keys() | now.keys()) - {*PER_METRIC, *unrecorded_conditions(stored, now)}
    return [Difference(name, stored.get(name), now.get(name)) for name in sorted(names)
            if stored.get(name) != now.get(name)]


def is_comparable(session: StoredSession, rules: FieldRules, flags: Collection[str]) -> bool:
    """Whether a stored session was measured under its baseline's conditions, except for those that may differ.

    A condition that the session's version did not record is ignored.

    Args:
        flags: names of the flags that the test asked for.
    """
    def excused(field: str, value: str | None) -> bool:
        return rules.may_differ(field, flags) or (value is None and _recorded_later(field))

    return all(excused(field, value) for field, value in session.differs.items())


def comparable_sessions(stored: StoredMeasurement, rules: FieldRules) -> StoredMeasurement:
    """Without the sessions that were taken in across other conditions, unless these may still differ."""
    flags = requested_flags(stored.fingerprint)
    return replace(stored, sessions=tuple(each for each in stored.sessions if is_comparable(each, rules, flags)))


def unrecorded_conditions(stored: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Conditions of `now` that were not recorded yet when `before` was: not absent then, but unknown."""
    return {field for field in now.keys() - stored.keys() if _recorded_later(field)}


def _recorded_later(field: str) -> bool:
    return field.partition(".")[0] in RECORDED_LATER


def _value_text(value: str | None) -> str:
    return "absent" if value is None else value
