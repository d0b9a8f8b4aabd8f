"""All metrics of one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial

from pytest_llmperf.metrics.energy import energy_values
from pytest_llmperf.metrics.families import (
    FAMILIES,
    Samples,
    hit_rate,
    output_tokens,
    prompt_tokens,
    served_conversations,
    turn_names,
    turns_of,
)
from pytest_llmperf.metrics.recovery import RECOVERY, recovery_time_s
from pytest_llmperf.metrics.registry import added_values, find, find_family
from pytest_llmperf.metrics.server import (
    POOLS,
    Counters,
    counter_difference,
    nothing_counted,
    of_pool,
    server_values,
)
from pytest_llmperf.metrics.summary import summarise
from pytest_llmperf.model.event import DISTURBED_FROM
from pytest_llmperf.model.record import Outcome, RequestRecord, RunRecords

_NS_PER_MS = 1_000_000
#: Shares of all requests of a run: metric → whether a request counts.
SHARES: Mapping[str, Callable[[RequestRecord], bool]] = {
    "error_rate": lambda record: record.failed and record.outcome is not Outcome.RATE_LIMITED,
    "rate_limited_rate": lambda record: record.outcome is Outcome.RATE_LIMITED,
    "cancelled_rate": lambda record: record.outcome is Outcome.ABANDONED,
}
#: A text has several tokenizations, and a tokenizer chooses the usual one: a model may have generated another.
TEXT_TOLERANCE = 0.1


class CountedBy(Enum):
    """What confirms how many tokens the answers of a run have, beside their own usage."""

    CHUNKS = "counts or token ids in each chunk"
    SERVER = "the server's counter of generated tokens"
    TOKENIZER = "a named tokenizer"


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of one run. Build an instance with `measure`.

    Args:
        source: the records of the run, by index. Derived values are cached as long as the records are in memory.
        values: metric → value; None if the metric is unavailable.
        counted_by: the source that confirms the token counts of the usage; None if no source confirms the counts.
        tokenizer: name of the tokenizer that counted the received texts; "" for none.
        judged: statistics that failed requests change, as stored in a run file (None stands for an infinite value).
            None if the statistics are computed from the records.
        counters: what the server's counters grew by; empty for metrics of a run file.
    """

    source: RunRecords = field(repr=False)
    values: Mapping[str, float | None] = field(repr=False)
    counted_by: CountedBy | None = None
    judged: Mapping[str, float | None] | None = field(default=None, repr=False)
    tokenizer: str = ""
    counters: Counters = field(default_factory=dict, repr=False)

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """The records of the run, ordered by intended send time."""
        return self.source.derived(_ordered)

    def by_request(self, family: str) -> tuple[Samples | None, ...] | None:
        """Nanoseconds that each request contributed to a latency sample, and None for a failed request.

        The result is None if the server's answers lack the counts that this sample needs.

        Raises:
            SloError: no such latency sample.
        """
        return self.source.derived(_of_family(find_family(family).name))

    def samples(self, family: str) -> tuple[float, ...]:
        """The pooled sample in milliseconds, e.g. of "ttft"; empty if there is none.

        Raises:
            SloError: no such latency sample.
        """
        return tuple(value_ns / _NS_PER_MS for values in self.by_request(family) or () for value_ns in values or ())

    def value(self, name: str) -> float | None:
        """Value in the metric's unit; None if the metric is unavailable in this run.

        Raises:
            SloError: the metric does not exist.
        """
        return self.values.get(find(name).name)

    def nothing_counted(self, name: str) -> str | None:
        """Why a ratio of the server's counters is 0 or missing: nothing to count happened; None for any other value."""
        return None if self.value(name) else nothing_counted(name, self.counters)

    def all(self) -> dict[str, float | None]:
        """Every metric by name."""
        return dict(self.values)


def measure(
    records: Sequence[RequestRecord], counters: Counters | None = None, tokenizer: str = ""
) -> RunMetrics:
    """Metrics of one run.

    Args:
        records: one per request, in any order.
        counters: what the server's counters grew by and the peaks of its gauges, under canonical names.
        tokenizer: name of the tokenizer that counted the received texts; "" for none.
    """
    source = RunRecords.of(records)
    values: dict[str, float | None] = {}
    turns = turn_names(source)
    for name in (*FAMILIES, *(f"ttft_{turn}" for turn in turns)):
        by_request = source.derived(_of_family(name))
        pooled = [value_ns / _NS_PER_MS for values_ns in by_request or () for value_ns in values_ns or ()]
        values |= {f"{name}_{stat}": value for stat, value in summarise(pooled).items()}
    values |= run_level(source.derived(_ordered))
    served_tokens = _total([output_tokens(record) for record in records if record.ok])
    values |= energy_values(counters or {}, served_tokens, values["duration_s"])
    for name in (f"hit_rate_{turn}" for turn in turns):
        if (named := turns_of(name)) is not None:
            values[name] = hit_rate(source, named[1], counters or {})
    values["kv_fragmentation"] = fragmentation(source, (counters or {}).get("block_size"))
    values |= server_values(counters or {})
    if DISTURBED_FROM in (counters or {}):
        values[RECOVERY] = recovery_time_s(source.derived(_ordered), counters or {})
    for pool in POOLS:
        if counted := of_pool(counters or {}, pool):
            of_servers = server_values(counted) | energy_values(counted, None, None)
            values |= {f"{name}.{pool}": value for name, value in of_servers.items() if value is not None}
    values |= added_values(source.derived(_ordered), counters or {})
    return RunMetrics(source, values, _counted_by(records, counters or {}), tokenizer=tokenizer,
                      counters=counters or {})


def _ordered(records: Sequence[RequestRecord]) -> tuple[RequestRecord, ...]:
    return tuple(sorted(records, key=lambda record: (record.intended_ns, record.index)))


def _counted_by(records: Sequence[RequestRecord], counters: Counters) -> CountedBy | None:
    """A proxy can write any number into the usage. An answer of one token needs no count, and a server's counter
    confirms a run in which no request failed."""
    served = [record for record in records if record.ok]
    if any(record.text_tokens is not None for record in served):
        return None if text_disagrees(served) else CountedBy.TOKENIZER
    if all(record.chunk_tokens is not None or output_tokens(record) == 1 for record in served):
        return CountedBy.CHUNKS
    claimed = _total([output_tokens(record) for record in served])
    agrees = claimed is not None and claimed == counter_difference(counters, "generation_tokens")
    return CountedBy.SERVER if agrees and len(served) == len(records) else None


def text_disagrees(records: Iterable[RequestRecord]) -> tuple[int, int] | None:
    """Tokens of the texts by the named tokenizer and by the usage, if these counts differ by more than
    `TEXT_TOLERANCE`. Equal counts, and answers without a usage, give None."""
    both = [(record.text_tokens, record.output_tokens) for record in records
            if record.ok and record.text_tokens is not None and record.output_tokens is not None]
    text, usage = sum(text for text, _ in both), sum(usage for _, usage in both)
    return (text, usage) if abs(text - usage) > TEXT_TOLERANCE * usage else None


def _contributions(name: str, records: Sequence[RequestRecord]) -> tuple[Samples | None, ...] | None:
    """See `RunMetrics.by_request`. One request with missing data makes the whole sample unknown, because the
    remaining requests would be a biased selection."""
    family = find_family(name)
    contributions: list[Samples | None] = []
    for record in _ordered(records):
        if family.turns is not None and record.turn not in family.turns:
            contributions.append(())
        elif not family.with_failed and (
                record.failed or (record.outcome is Outcome.ABANDONED and not record.arrivals_ns)):
            contributions.append(None)
        elif (taken := family.take(record)) is None:
            return None
        else:
            contributions.append(taken)
    return tuple(contributions)


@cache
def _of_family(name: str) -> partial[tuple[Samples | None, ...] | None]:
    """One function per sample, by which `RunRecords.derived` keeps the result."""
    return partial(_contributions, name)


def span_ns(records: Sequence[RequestRecord]) -> tuple[int, int] | None:
    """First intended send time, and the later of the last content chunk and the last intended send time. None if no
    request was served.

    The intended send times of failed requests count. Without them, a server that refuses the second half of the
    requests would keep the rate of the first half. The end times of failed requests do not count, because a single
    hanging request would make any rate small.
    """
    ends_ns = [record.arrivals_ns[-1] for record in records if record.ok and record.arrivals_ns]
    if not ends_ns:
        return None
    intended_ns = [record.intended_ns for record in records]
    return min(intended_ns), max(*ends_ns, *intended_ns)


def run_level(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    """Duration, throughputs and shares of a run."""
    served = [record for record in records if record.ok]
    span = span_ns(records)
    duration_s = None if span is None else (span[1] - span[0]) / 1e9
    output = _total([output_tokens(record) for record in served])
    prompt = _total([record.prompt_tokens for record in served])
    gaps = sum(max(0, len(record.arrivals_ns) - 1) for record in served)
    return {
        "duration_s": duration_s,
        "request_throughput": _per_s(len(served), duration_s),
        "conversation_throughput": _per_s(served_conversations(records), duration_s),
        "output_throughput": _per_s(output, duration_s),
        "total_token_throughput": _per_s(None if output is None or prompt is None else output + prompt, duration_s),
        **{name: sum(map(counts, records)) / len(records) if records else None for name, counts in SHARES.items()},
        "hung_requests": sum(record.outcome is Outcome.TIMEOUT for record in records) if records else None,
        "retries": sum(record.attempts - 1 for record in records) if records else None,
        "retried_prompt_tokens": _total([_retried_tokens(record) for record in records]) if records else None,
        "coalesced_share": sum(record.coalesced_chunks for record in served) / gaps if gaps else None,
    }


def fragmentation(records: Sequence[RequestRecord], block_size: float | None) -> float | None:
    """Share of the KV cache of answered requests that is empty at the end of each request: 1 − Σ tokens ÷ Σ blocks ×
    block size. The last generated token has no KV cache. None if a count or the block size is unknown."""
    tokens = [None if record.prompt_tokens is None or (generated := output_tokens(record)) is None
              else record.prompt_tokens + generated - 1 for record in records if record.ok]
    total, counts = _total(tokens), [count for count in tokens if count is not None]
    if not total or not block_size:
        return None
    return 1 - total / sum(math.ceil(count / block_size) * block_size for count in counts)


def _retried_tokens(record: RequestRecord) -> int | None:
    """Prompt tokens of all sends beyond the first; None if the length of a repeated prompt is unknown."""
    if record.attempts == 1:
        return 0
    tokens = prompt_tokens(record)
    return None if tokens is None else tokens * (record.attempts - 1)


def _total(counts: Sequence[int | None]) -> int | None:
    available_counts = [count for count in counts if count is not None]
    return sum(available_counts) if len(available_counts) == len(counts) else None


def _per_s(count: int | None, duration_s: float | None) -> float | None:
    return None if count is None or not duration_s else count / duration_s
