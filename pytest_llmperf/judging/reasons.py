"""What a count rests on, and why it came out as it did, as users read it."""

from __future__ import annotations

from dataclasses import replace
from math import exp

from pytest_llmperf.judging.sample import Sample
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.exceedance import Exceedance

#: Above this, how many times slower others may be is no estimate but the lack of one.
_UNKNOWN_ABOVE = 3
#: Why one draw of the traffic passes nothing where its requests depend on each other.
SLOW_CHANGES = ("neighbouring requests are more alike than independent ones, and runs of one seed cannot tell a slow "
                "change of the server from the course of the workload: measure more runs, of other seeds")


def sample_text(exceedance: Exceedance, sample: Sample, word: str) -> str:
    """"4 of 1000 over, effective n 740, 3 runs, conditional on this server start"; of a PASS what it could not see."""
    count = f"{exceedance.count.over} of {exceedance.count.of} {word}"
    worth = "below 1" if exceedance.effective_n < 1 else f"{exceedance.effective_n:.0f}"
    effective = "" if exceedance.effective_fraction == 1 else f", effective n {worth}"
    unseen = f", {sample.unseen}" if exceedance.verdict is Verdict.PASS else ""
    return f"{count}{effective}, {sample}{_of_model(exceedance)}{unseen}"


def _of_model(found: Exceedance) -> str:
    """What a PASS assumes."""
    if not found.by_level or found.count_at_margin is None:
        return ""
    lower = 100 * (1 - exp(-found.pass_margin))
    return (
        ", by the level model (slow changes move all requests by one factor): "
        f"{found.count_at_margin.over} beyond a limit {lower:.2g} % lower"
    )


def verdict_reason(exceedance: Exceedance, word: str, margin: float) -> str:
    """The cause of a FAIL, or what would end an INCONCLUSIVE."""
    rate = f"{100 * exceedance.count.over / exceedance.count.of:.3g} %"
    if exceedance.verdict is Verdict.FAIL:
        return (f"{rate} are {word} where {100 * exceedance.allowed:.3g} % may be, "
                f"more than chance allows at {100 * exceedance.confidence:g} %")
    few_enough = "which would be few enough, " if exceedance.passes_without_margin else ""
    if not exceedance.bounded and not exceedance.single_segment:
        return f"{rate} are {word}, {few_enough}but {SLOW_CHANGES}"
    if exceedance.margin_prevents_pass:
        return f"{rate} are {word}, {few_enough}but {_starts_differ_text(exp(margin))}"
    return _of_more(exceedance, word, rate)


def _of_more(found: Exceedance, word: str, rate: str) -> str:
    """How many more observations would end an INCONCLUSIVE."""
    if found.single_segment and replace(found, effective_fraction=1.0, bounded=True).still_needed() is not None:
        return (f"{rate} are {word}, and requests that were served at once are one observation: measure more runs, of "
                "other seeds")
    if (more := found.still_needed()) is None:
        return (f"{rate} {word} is too near the allowed {100 * found.allowed:.3g} % for any affordable number of "
                "requests; choose another limit")
    return f"about {more} more observations would decide it if {rate} stay {word}; measure more requests or more runs"


def _starts_differ_text(slower: float) -> str:
    more = "measure on more starts: perf.measure(spec, …, starts=N)"
    if slower > _UNKNOWN_ABOVE:
        return f"the server starts are too few, and differ too much, to tell what others may bring; {more}"
    return f"the server starts differ so much that others may be {_slowdown_text(slower)}; {more}"


def _slowdown_text(times: float) -> str:
    return f"{100 * (times - 1):.2g} % slower" if times < 2 else f"{times:.2g} times as slow"
