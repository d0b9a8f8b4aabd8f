"""What released versions of an engine removed: a type for adapters, and the names by the stored releases."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from pytest_llmperf.releases.changes import GONE, changes
from pytest_llmperf.releases.stored import description, release, versions


@dataclass(frozen=True, slots=True)
class Retired:
    """A removed name.

    Args:
        since: first version without the name.
        instead: what a spec says instead, as Python; "" if nothing replaces the name.
    """

    since: str
    instead: str = ""

    def __str__(self) -> str:
        return f" since {self.since} or earlier." + (f" Write {self.instead}." if self.instead else "")


@cache
def retired(engine: str, section: str) -> dict[str, Retired]:
    """Name as a spec writes it → since when a stored version lacks it. A name that came back is left out.

    Args:
        section: "flags" or "variables".

    Returns:
        Nothing for an engine without stored versions.
    """
    if not versions(engine):
        return {}
    stored = [facts for version in versions(engine) if (facts := release(engine, version)) is not None]
    names = {name: Retired(stored[0].version, instead)
             for name, instead in description(engine)["instead"].get(section, {}).items()}
    for older, newer in pairwise(stored):
        names |= {each.python_name: Retired(newer.version, each.instead) for each in changes(older, newer)
                  if each.section == section and each.kind == GONE and "." not in each.name}
    newest = stored[-1].options() if section == "flags" else stored[-1].variables
    return {name: entry for name, entry in names.items()
            if name not in newest and "--" + name.replace("_", "-") not in newest}
