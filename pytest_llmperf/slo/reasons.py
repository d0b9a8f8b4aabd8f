"""What a count rests on, and why it came out as it did, as users read it."""

from __future__ import annotations

from dataclasses import replace
from math import exp

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.slo.sample import Sample
from pytest_llmperf.stats.exceedance import Exceedance
from pytest_llmperf.stats.reach import Reach

#: Above this, how many times slower others may be is no estimate but the lack of one.
_TELLS_NOTHING = 3


def rests_on(found: Exceedance, sample: Sample, word: str) -> str:
    """"4 of 1000 over, effective n 740, 3 runs, conditional on this server start"."""
    count = f"{found.count.over} of {found.count.of} {word}"
    worth = "below 1" if found.effective_n < 1 else f"{found.effective_n:.0f}"
    effective = "" if found.worth == 1 else f", effective n {worth}"
    return f"{count}{effective}, {sample}"


def why(found: Exceedance, word: str, reach: Reach) -> str:
    """The cause of a FAIL, or what would end an INCONCLUSIVE."""
    rate = f"{100 * found.count.over / found.count.of:.3g} %"
    if found.verdict is Verdict.FAIL:
        return (f"{rate} are {word} where {100 * found.allowed:.3g} % may be, "
                f"more than chance allows at {100 * found.confidence:g} %")
    if found.levels_differ:
        return f"{rate} are {word}, {'which would be few enough, ' if found.few_enough else ''}but " + (
            _of_starts(exp(reach.starts)) if reach.starts >= reach.time else _of_times(exp(reach.time)))
    more, independent = found.still_needed(), replace(found, worth=1.0).still_needed()
    if found.one_stretch and independent is not None:
        return (f"{rate} are {word}, and requests that were served at once are one observation: measure more runs, of "
                "other seeds")
    if more is None:
        return (f"{rate} {word} is too near the allowed {100 * found.allowed:.3g} % for any affordable number of "
                "requests; choose another limit")
    return f"about {more} more observations would decide it if {rate} stay {word}; measure more requests or more runs"


def _of_starts(slower: float) -> str:
    more = "measure on more starts: perf.measure(spec, …, starts=N)"
    if slower > _TELLS_NOTHING:
        return f"the server starts are too few, and differ too much, to tell what others may bring; {more}"
    return f"the server starts differ so much that others may be {_slower(slower)}; {more}"


def _of_times(slower: float) -> str:
    if slower > _TELLS_NOTHING:
        return ("requests that were served at once are one observation: there are too few of these, and they differ "
                "too much, to tell what other times may bring; measure more runs")
    return ("requests of some times were so much slower than those of others that at other times they may be "
            f"{_slower(slower)}; measure more requests or more runs")


def _slower(times: float) -> str:
    return f"{100 * (times - 1):.2g} % slower" if times < 2 else f"{times:.2g} times as slow"
