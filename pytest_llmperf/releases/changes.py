"""Differences between two releases of an engine: flags, defaults, allowed values, metrics, routes and variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmperf.releases.stored import Release, description

GONE, NEW, DEFAULT, VALUES = "gone", "new", "default", "values"
ABSENT = "unset"
#: Sections in the order in which they are printed, with their words.
WORDS = {"flags": "flag", "variables": "variable", "metrics": "metric", "routes": "route", "packages": "requirement",
         "sources": "cited function"}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Args:
        section: "flags", "variables", "metrics", "routes", "packages" or "sources".
        kind: "gone", "new", "default", or "values": what it takes, its labels, its version.
        name: as the engine writes it; of a key in a JSON default "--compilation-config.cudagraph_mode".
        before, after: the default, the values or the version; "unset" without one.
        instead: what to write instead, as Python; "" if nothing replaces the name.
    """

    section: str
    kind: str
    name: str
    before: str = ABSENT
    after: str = ABSENT
    instead: str = ""

    @property
    def python_name(self) -> str:
        """The name of a flag as an argument of `vllm(…)`; any other name unchanged."""
        return self.name.removeprefix("--").replace("-", "_") if self.section == "flags" else self.name


def changes(older: Release, newer: Release) -> list[Change]:
    """Every difference, by section and name."""
    found = [*_flags(older, newer)]
    for section in ("variables", "metrics", "routes", "packages"):
        found += _entries(section, getattr(older, section), getattr(newer, section), older)
    return [*found, *_sources(older, newer)]


def changed_defaults(older: Release, newer: Release) -> list[Change]:
    """Defaults that changed, and flags and variables that came with a default that is neither off nor empty."""
    return [each for each in changes(older, newer) if each.section in ("flags", "variables")
            and (each.kind == DEFAULT or (each.kind == NEW and each.after not in (ABSENT, "False", "''", "'auto'")))]


def replacement(engine: str, name: str, older: Release | None, newer: Release | None) -> str:
    """What replaces a removed flag, as Python: what a person found, or the option that the older name set.

    Args:
        name: with underscores.
        older: a version with the flag; None if no stored version has it.
    """
    written: str = description(engine)["instead"]["flags"].get(name, "")
    entry = older.flags.get("--" + name.replace("_", "-"), {}) if older is not None else {}
    target = entry.get("dest")
    if written or target is None or newer is None or "--" + target.replace("_", "-") not in newer.options():
        return written
    value = repr(entry["const"]) if "const" in entry else "[…]" if entry.get("nargs") else "…"
    return f"{target}={value}"


def _flags(older: Release, newer: Release) -> Iterator[Change]:
    past, now = older.options(), newer.options()
    for name in sorted(past.keys() - now.keys()):
        if not name.startswith("--no-") or name[5:] not in {each[2:] for each in past}:
            instead = replacement(older.engine, name[2:].replace("-", "_"), older, newer)
            yield Change("flags", GONE, name, before=_default(older.flags[past[name]]), instead=instead)
    for name in sorted(newer.flags):
        if name.startswith("-") and name not in past:
            yield Change("flags", NEW, name, after=_default(newer.flags[name]))
    for name in sorted(older.flags.keys() & newer.flags.keys()):
        before, after = older.flags[name], newer.flags[name]
        yield from _defaults(name, before.get("default"), after.get("default"))
        if _values(before) != _values(after):
            yield Change("flags", VALUES, name, *_contrast(before, after))


def _defaults(name: str, before: object, after: object) -> Iterator[Change]:
    """The changes of a default; of a configuration object, a change for each key."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted(before.keys() | after.keys()):
            if key not in before:
                yield Change("flags", NEW, f"{name}.{key}", after=_shown(after[key]))
            elif key not in after:
                yield Change("flags", GONE, f"{name}.{key}", before=_shown(before[key]))
            else:
                yield from _defaults(f"{name}.{key}", before[key], after[key])
    elif before != after:
        yield Change("flags", DEFAULT, name, _shown(before), _shown(after))


def _default(entry: Mapping[str, Any]) -> str:
    return _shown(entry.get("default"))


def _shown(value: object) -> str:
    if value is None:
        return ABSENT
    return "{…}" if isinstance(value, Mapping) else repr(value)


def _values(entry: Mapping[str, Any]) -> dict[str, Any]:
    choices = sorted(map(str, entry["choices"])) if "choices" in entry else None
    return {"choices": choices, **{key: entry.get(key) for key in ("action", "type", "nargs")}}


def _contrast(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, str]:
    """Before and after in words: the choices that only one version has, or else the types of the values."""
    past, now = ({str(choice) for choice in each.get("choices") or ()} for each in (before, after))
    if past and now and past != now:
        return ", ".join(sorted(past - now)) or ABSENT, ", ".join(sorted(now - past)) or ABSENT
    return _taken(before), _taken(after)


def _taken(entry: Mapping[str, Any]) -> str:
    texts = {key: value for key, value in _values(entry).items() if value is not None}
    if "choices" in texts:
        texts["choices"] = f"{len(texts['choices'])} texts"
    return ", ".join(f"{key} {value}" for key, value in texts.items()) or "any text"


def _entries(
    section: str, before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]], older: Release
) -> Iterator[Change]:
    instead = description(older.engine)["instead"].get(section, {})
    for name in sorted(before.keys() | after.keys()):
        past, now = before.get(name), after.get(name)
        if past is None:
            yield Change(section, NEW, name, after=_fact(section, now))
        elif now is None:
            yield Change(section, GONE, name, before=_fact(section, past), instead=instead.get(name, ""))
        elif past != now:
            yield Change(section, DEFAULT if section == "variables" else VALUES, name, _fact(section, past),
                         _fact(section, now))


def _fact(section: str, entry: Mapping[str, Any] | None) -> str:
    if section == "variables":
        return _shown((entry or {}).get("default"))
    if section == "packages":
        return str((entry or {}).get("version", ABSENT))
    return ", ".join(f"{key} {' '.join(value) if isinstance(value, list) else value}"
                     for key, value in (entry or {}).items()) or ABSENT


def _sources(older: Release, newer: Release) -> Iterator[Change]:
    """Cited functions by what is taken from them: a renamed function is the same source."""
    by_fact: dict[str, list[str]] = {}
    for name, fact in description(older.engine)["cited"].items():
        by_fact.setdefault(fact, []).append(name)
    for fact, names in by_fact.items():
        past, now = ([each.sources[name]["digest"] for name in names if name in each.sources]
                     for each in (older, newer))
        if past != now:
            here = [name for name in names if name in newer.sources] or names
            yield Change("sources", VALUES, here[0], before=" ".join(past) or ABSENT, after=" ".join(now) or ABSENT,
                         instead=fact)
