"""A server's /metrics page as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, isnan, nan
from types import MappingProxyType

from pytest_llmperf.errors import EngineError, MetricUnavailable

START_TIME = "process_start_time_s"
#: Differences of counters (`engines.sglang.adapter`), which can fall if the server updates counters during a scrape.
DERIVED = frozenset({"external_cache_queries", "spec_accepted_tokens"})
#: Beyond it a float skips whole numbers, so no counter counts there.
LARGEST_COUNT = 2.0**53

MOST_SAMPLES = 100_000
MOST_LINE_CHARACTERS = 64 * 1024
# Possessive quantifiers do not backtrack, so the time for a line that does not match is linear in its length.
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_PAIR = rf'[ \t]*+({_QUOTED}|[^\s"=,{{}}]++)[ \t]*+=[ \t]*+({_QUOTED})[ \t]*+(?:,|(?=\}}|$))'
_LABEL = re.compile(_PAIR)
_ESCAPE = re.compile(r"\\(.)")
_SAMPLE = re.compile(
    r"[ \t]*+(?P<name>[a-zA-Z_:][\w:]*+)?+[ \t]*+"
    rf"(?:\{{[ \t]*+(?:(?P<quoted>{_QUOTED})[ \t]*+(?:,|(?=\}})))?+(?P<labels>(?:{_PAIR})*+)[ \t]*+\}})?+"
    r"[ \t]*+(?P<value>\S++)(?:[ \t]++[-+\d.eE]++)?+"  # a timestamp may follow
    r"(?:[ \t]++#.*+)?+[ \t\r]*+",  # and an exemplar
    re.ASCII,
)
_FIRST_WORD = re.compile(r"[a-zA-Z_:][\w:]*+", re.ASCII)
#: The page in the format that `parse` reads, from a server that has several.
ACCEPT = {"accept": "text/plain;version=0.0.4, */*;q=0.1"}


@dataclass(frozen=True, slots=True)
class PageSample:
    """One line of the page. The value is NaN where the line has no number, or could not be read."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of the page."""

    samples: tuple[PageSample, ...]

    def counter(self, name: str) -> float | None:
        """Sum over all label sets (engines, ranks), not finite if one value is not finite; None if the page has no
        sample of this name."""
        values = [s.value for s in self.samples if s.name == name]
        return sum(values) if values else None

    def total(self, name: str) -> float | None:
        """Sum over all label sets; None if the name is missing, or if the value of a label set is no finite number."""
        value = self.counter(name)
        return value if value is not None and isfinite(value) else None

    def counters(self, names: Mapping[str, str]) -> dict[str, float]:
        """Canonical name → `counter` of a name on the page, as far as the page has such samples."""
        return {name: value for name, sample in names.items() if (value := self.counter(sample)) is not None}

    def totals(self, names: Mapping[str, str]) -> dict[str, float]:
        """Canonical name → `total` of a name on the page, as far as there is one."""
        return {name: value for name, sample in names.items() if (value := self.total(sample)) is not None}

    def largest(self, name: str) -> float | None:
        """The largest of all label sets, for shares, which have no sum; None as in `total`."""
        values = [s.value for s in self.samples if s.name == name]
        return max(values) if values and all(map(isfinite, values)) else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Counters by the value of one label. One NaN makes all of them NaN, because its labels may be unknown."""
        sums: dict[str, float] = {}
        for sample in self.samples:
            if sample.name == name and label in sample.labels:
                sums[sample.labels[label]] = sums.get(sample.labels[label], 0.0) + sample.value
        return dict.fromkeys(sums, nan) if isnan(self.counter(name) or 0.0) else sums

    def labels(self, name: str) -> Mapping[str, str]:
        """Labels of the first sample with this name; empty without such a sample."""
        return next((s.labels for s in self.samples if s.name == name), {})


def parse(text: str) -> Scrape:
    """Read Prometheus text exposition 0.0.4, with what OpenMetrics and UTF-8 names add to a line.

    A line that cannot be read becomes a sample NaN under its first word, so that a sum never lacks it in silence. The
    buckets of histograms are left out: they are most of the page, and no metric needs them. prometheus_client reads the
    same, and takes ten times as long.

    Raises:
        MetricUnavailable: no line of the text is in that format.
        EngineError: the text has more samples, or a longer line, than any server needs.
    """
    samples: list[PageSample] = []
    unread: str | None = None
    readable = False
    for line in _lines(text.removeprefix("\ufeff")):
        if not line or line.startswith("#") or line.partition("{")[0].rstrip().endswith("_bucket") or not line.strip():
            continue
        if len(samples) == MOST_SAMPLES or len(line) > MOST_LINE_CHARACTERS:
            raise EngineError(f"/metrics has more than {MOST_SAMPLES:,} samples, or a line of more than "
                              f"{MOST_LINE_CHARACTERS:,} characters; it begins {text[:80]!r}. Mend the page.")
        if (sample := _sample(line)) is not None:
            readable = True
            if not sample.name.endswith("_bucket"):
                samples.append(sample)
            continue
        unread = line if unread is None else unread
        if (word := _FIRST_WORD.search(line)) is not None:
            samples.append(PageSample(word[0], {}, nan))
    if unread is not None and not readable:
        raise MetricUnavailable(f"/metrics is not Prometheus text: {unread[:80]!r}; the page begins "
                                f"{text[:80]!r}. Correct metrics=.")
    return Scrape(tuple(samples))


def _sample(line: str) -> PageSample | None:
    """The sample of a line; None for a line in another format."""
    match = _SAMPLE.fullmatch(line)
    if match is None or (match["name"] is None) == (match["quoted"] is None):
        return None
    try:
        value = float(match["value"])
    except ValueError:
        return None
    return PageSample(match["name"] or _plain(match["quoted"]), _labels(match["labels"] or ""), value)


def _lines(text: str) -> Iterator[str]:
    """The lines one by one, because a list of all lines takes many times the memory of the page."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


@lru_cache(maxsize=1024)
def _labels(text: str) -> Mapping[str, str]:
    """The pairs between the braces of a sample."""
    return MappingProxyType({_plain(name): _plain(value) for name, value in _LABEL.findall(text)})


def _plain(text: str) -> str:
    """A name or value without its quotation marks and escapes."""
    return _ESCAPE.sub(lambda match: {"n": "\n"}.get(match[1], match[1]), text[1:-1]) if text[0] == '"' else text


def deltas(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float | None]:
    """Counter differences; None for a counter that is missing after the run.

    A counter that appears during the run counts from 0, as Prometheus clients define it. If one of the two pages could
    not be read, the result is empty.
    """
    if not before or not after:
        return {}
    names = (before.keys() | after.keys()) - {START_TIME}
    return {name: after[name] - before.get(name, 0.0) if name in after else None for name in names}


class CounterLog:
    """The counters of one server, each reading compared with the one before: a counter only grows."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._latest_begin = 0.0
        self._restart: str | None = None
        self._other_process: str | None = None

    def take(self, reading: Mapping[str, float]) -> None:
        """Compare a reading with the last one of each counter."""
        earlier = _earlier_process(self._last, self._latest_begin, reading)
        self._other_process = self._other_process or earlier
        self._restart = None if self._other_process else self._restart or _restart(self._last, reading)
        self._last |= reading
        self._latest_begin = max(self._latest_begin, reading.get(START_TIME, 0.0))

    def other_process(self) -> str | None:
        """Evidence since the last call that several processes answer for one page; None without evidence."""
        other, self._other_process = self._other_process, None
        return other

    def restart(self) -> str | None:
        """Evidence since the last call that the server's process restarted; None without evidence."""
        restart, self._restart = self._restart, None
        return restart


def _earlier_process(before: Mapping[str, float], latest_begin_s: float, after: Mapping[str, float]) -> str | None:
    """Evidence of several processes: a process that restarted is the latest one, and this page is of an earlier one."""
    began, begins = before.get(START_TIME), after.get(START_TIME)
    if began is None or begins is None or begins == began or begins > latest_begin_s:
        return None
    return (f"several processes answer for one /metrics (started at {began:.15g} and {begins:.15g}); name the page of "
            "each replica with endpoint(…, metrics=[…])")


def _restart(before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
    began, begins = before.get(START_TIME), after.get(START_TIME)
    if began is not None and begins is not None and began != begins:
        return f"its start time changed from {began:.15g} to {begins:.15g}"
    fallen = (name for name, value in before.items() if after.get(name, value) < value and name not in DERIVED)
    return next((f"its counter {name} fell from {before[name]:.15g} to {after[name]:.15g}" for name in fallen), None)
