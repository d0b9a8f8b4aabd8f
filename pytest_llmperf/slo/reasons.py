"""What a count rests on, and why it came out as it did, as users read it."""

from __future__ import annotations

from dataclasses import replace
from math import exp

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.slo.sample import Sample
from pytest_llmperf.stats.exceedance import Exceedance

#: Above this, how many times slower others may be is no estimate but the lack of one.
_TELLS_NOTHING = 3
#: Why one draw of the traffic passes nothing where its requests depend on each other.
SLOW_CHANGES = ("neighbouring requests are more alike than independent ones, and runs of one seed cannot tell a slow "
                "change of the server from the course of the workload: measure more runs, of other seeds")


def rests_on(found: Exceedance, sample: Sample, word: str) -> str:
    """"4 of 1000 over, effective n 740, 3 runs, conditional on this server start"; of a PASS what it could not see."""
    count = f"{found.count.over} of {found.count.of} {word}"
    worth = "below 1" if found.effective_n < 1 else f"{found.effective_n:.0f}"
    effective = "" if found.worth == 1 else f", effective n {worth}"
    unseen = f", {sample.unseen}" if found.verdict is Verdict.PASS else ""
    return f"{count}{effective}, {sample}{_of_model(found)}{unseen}"


def _of_model(found: Exceedance) -> str:
    """What a PASS assumes."""
    if not found.by_level or found.near is None:
        return ""
    lower = 100 * (1 - exp(-found.reach))
    return (f", by the level model (slow changes move all requests by one factor): {found.near.over} beyond a limit "
            f"{lower:.2g} % lower")


def why(found: Exceedance, word: str, reach: float) -> str:
    """The cause of a FAIL, or what would end an INCONCLUSIVE."""
    rate = f"{100 * found.count.over / found.count.of:.3g} %"
    if found.verdict is Verdict.FAIL:
        return (f"{rate} are {word} where {100 * found.allowed:.3g} % may be, "
                f"more than chance allows at {100 * found.confidence:g} %")
    few_enough = "which would be few enough, " if found.few_enough else ""
    if not found.bounded and not found.one_stretch:
        return f"{rate} are {word}, {few_enough}but {SLOW_CHANGES}"
    if found.levels_differ:
        return f"{rate} are {word}, {few_enough}but {_of_starts(exp(reach))}"
    return _of_more(found, word, rate)


def _of_more(found: Exceedance, word: str, rate: str) -> str:
    """How many more observations would end an INCONCLUSIVE."""
    if found.one_stretch and replace(found, worth=1.0, bounded=True).still_needed() is not None:
        return (f"{rate} are {word}, and requests that were served at once are one observation: measure more runs, of "
                "other seeds")
    if (more := found.still_needed()) is None:
        return (f"{rate} {word} is too near the allowed {100 * found.allowed:.3g} % for any affordable number of "
                "requests; choose another limit")
    return f"about {more} more observations would decide it if {rate} stay {word}; measure more requests or more runs"


def _of_starts(slower: float) -> str:
    more = "measure on more starts: perf.measure(spec, …, starts=N)"
    if slower > _TELLS_NOTHING:
        return f"the server starts are too few, and differ too much, to tell what others may bring; {more}"
    return f"the server starts differ so much that others may be {_slower(slower)}; {more}"


def _slower(times: float) -> str:
    return f"{100 * (times - 1):.2g} % slower" if times < 2 else f"{times:.2g} times as slow"
