"""Tests, checks and metrics as sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_llmperf.errors import SloError
from pytest_llmperf.model.event import PHASES
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.reader import names
from pytest_llmperf.results.sentences import limit_text
from pytest_llmperf.slo.model import Claim, Comparison, Mechanism, Slo
from pytest_llmperf.slo.parse import parse_claim, parse_slo

_STATS = {"mean": "mean", "p50": "median", "max": "largest"}
_FAMILIES = {
    "ttft": "time to first token",
    "itl": "gap between chunks",
    "itl_per_token": "gap per token",
    "tpot": "time per output token",
    "e2el": "end-to-end latency",
    "largest_stall": "longest stall of a request",
    "send_delay": "send delay",
}
_STATISTIC = re.compile(rf"({'|'.join(_FAMILIES)})(?:_turn(\d+)(plus)?)?_(mean|p\d+|max)")
#: Latency sample → heading of its metrics.
FAMILY_WORDS = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Gaps between chunks (ITL)",
    "itl_per_token": "Gaps per token",
    "e2el": "End-to-end latency",
    "largest_stall": "Longest stall of a request",
    "send_delay": "Send delay of the load generator",
}
_SIGNS = {Comparison.AT_MOST: "at most", Comparison.AT_LEAST: "at least", Comparison.EQUAL: "exactly"}


def title(test: str, kind: str = "") -> str:
    """The name of a test as a sentence.

    Args:
        kind: the hardware kind of all tests of the page, which the sentence then omits.

    >>> title("suites/test_cache.py::TestA::test_prefixes_come_from_the_cache[h200-big]")
    'Prefixes come from the cache · h200-big'
    """
    function, _, parameters = test.rpartition("::")[2].partition("[")
    words = function.removeprefix("test_").replace("_", " ").strip() or test
    shown = "-".join(part for part in parameters.removesuffix("]").split("-") if part != kind)
    return words[:1].upper() + words[1:] + (f" · {shown}" if shown else "")


def labels(measurements: Sequence[Measurement]) -> list[str]:
    """Chart labels: "A" and "B" for the sides of a claim, numbers for several measurements. A repeated side also gets a
    number. The rates of a search are labelled with the rate."""
    if [measurement.side for measurement in measurements] == [""]:
        return ["measured"]
    return [_label(*pair) for pair in zip(measurements, names(measurements), strict=True)]


def _label(measurement: Measurement, name: str) -> str:
    if measurement.tried:
        return measurement.conditions["tried_rate"]
    return f"search {name.upper()}" if measurement.searched else name.upper()


def metric_in_words(name: str) -> str:
    """A metric's name for people.

    >>> metric_in_words("ttft_p99"), metric_in_words("prefix_cache_hit_rate")
    ('99th percentile of the time to first token', 'prefix cache hit rate')
    """
    match = _STATISTIC.fullmatch(name)
    if match is None:
        return name.replace("_", " ")
    family, stat = _FAMILIES[match[1]], match[4]
    if match[2] is not None:
        family += f" in turn {match[2]}{' and later' if match[3] else ''}"
    return f"{_STATS[stat]} {family}" if stat in _STATS else f"{stat[1:]}th percentile of the {family}"


def in_words(check: CheckResult) -> str:
    """The requirement of a check as a sentence; "" for a check whose subject is neither a claim nor an SLO."""
    if check.compares_with_baseline:
        return f"{_capital(metric_in_words(check.metric))}: {_tolerated(check)} worse than the baseline"
    try:
        return _requirement_text(parse_claim(check.subject))
    except SloError:
        pass
    try:
        return _requirement_text(parse_slo(check.subject, PHASES))
    except SloError:
        return ""


def _tolerated(check: CheckResult) -> str:
    """"at most 5.0 %"."""
    if check.limit is None or check.unit is None:
        return limit_text(check)
    return f"at most {check.unit.show(abs(check.limit)).removeprefix('+')}"


def _requirement_text(requirement: Claim | Mechanism | Slo) -> str:
    subject, sign = _capital(metric_in_words(requirement.metric)), _SIGNS[requirement.comparison]
    if isinstance(requirement, Claim):
        top, bottom = requirement.numerator.upper(), requirement.denominator.upper()
        return f"{subject} of {top}: {sign} {requirement.ratio:g} times that of {bottom}"
    limit = str(requirement).rpartition(" ")[2]
    if isinstance(requirement, Mechanism):
        return f"{subject} of {requirement.side.upper()}: {sign} {limit}"
    phase = f" {requirement.phase} the events" if requirement.phase else ""
    within = f" within {' and '.join(str(limit) for limit in requirement.within)}" if requirement.within else ""
    return f"{subject}{phase}{within}: {sign} {limit}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
