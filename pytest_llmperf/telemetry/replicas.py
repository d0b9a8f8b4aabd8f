"""Counters of a service of several replicas: their sums, and what successive readings show about the replicas."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pytest_llmperf.metrics.server import POOLS, TIERS
from pytest_llmperf.telemetry.prometheus import START_TIME, CounterLog, Scrape, deltas

#: Name of a server that is no replica of a service.
ALONE = ""
LEAST_REPLICAS = 2
_MEMBER = re.compile(rf"({'|'.join(POOLS)})-\d+")
#: Counter → the pool that counts for the whole deployment, because each request visits a prefill server and a decode
#: server. A transferred prompt is no cache hit of the decode server. The first token of the prefill server is dropped.
OF_POOL = {
    **dict.fromkeys(("prompt_tokens", "prompt_tokens_cached", "prefix_cache_queries", "prefix_cache_hits",
                     "external_cache_queries", "external_cache_hits", *(f"cached_tokens_{tier}" for tier in TIERS)),
                    "prefill"),
    **dict.fromkeys(("cached_tokens_p2p", "requests_finished", "generation_tokens", "engine_steps", "queue_time_count",
                     "tpot_s_sum", "tpot_count"), "decode"),
}


@dataclass(frozen=True, slots=True)
class PagesReading:
    """One reading of all metrics pages of a service.

    Args:
        pages: page by replica.
        silent: replica whose page could not be read → reason.
    """

    pages: Mapping[str, Scrape]
    silent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)  # equal as mappings are
class Counters(Mapping[str, float]):
    """Counters at one time. As a mapping: the sum over all replicas by canonical name, see `counts`.

    Args:
        replicas: replica → its counters by canonical name.
    """

    replicas: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        values = [counters[name] for replica, counters in self.replicas.items()
                  if name in counters and counts(replica, name)]
        if not values:
            raise KeyError(name)
        return sum(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for replica, counters in self.replicas.items() for name in counters
                                  if counts(replica, name)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def start_times(self) -> dict[str, float]:
        """When the process of each replica began, as far as the pages say so."""
        return {name: counters[START_TIME] for name, counters in self.replicas.items() if START_TIME in counters}


def increases(before: Counters, after: Counters) -> dict[str, dict[str, float | None]]:
    """Counter differences by replica, see `prometheus.deltas`, of the replicas that are in both readings."""
    return {name: deltas(counters, after.replicas[name])
            for name, counters in before.replicas.items() if name in after.replicas}


def pool_of(replica: str) -> str:
    """The pool of a server of a deployment: "decode" of "decode-1"; "" for any other replica."""
    member = _MEMBER.fullmatch(replica)
    return member[1] if member else ""


def counts(replica: str, counter: str) -> bool:
    """Whether the counter of a replica is part of the sum over the deployment (`OF_POOL`)."""
    pool = pool_of(replica)
    return not pool or OF_POOL.get(counter, pool) == pool


def total_increases(
    increases_by_replica: Mapping[str, Mapping[str, float | None]], pool: str = ""
) -> dict[str, float | None]:
    """The sum over the replicas that have a counter; None if such a replica lost the counter during the run.

    Args:
        increases_by_replica: replica → increases of its counters.
        pool: sum over this pool alone; "": over all replicas, see `counts`.
    """
    sums: dict[str, float | None] = {}
    for replica, counters in increases_by_replica.items():
        for name, value in counters.items():
            if not (pool_of(replica) == pool if pool else counts(replica, name)):
                continue
            before = sums.get(name, 0.0)
            sums[name] = None if value is None or before is None else before + value
    return sums


def by_pool(increases_by_replica: Mapping[str, Mapping[str, float | None]]) -> dict[str, float | None]:
    """The sums and the balance of each pool of a deployment, as counters of a run: "prompt_tokens.decode"."""
    counters: dict[str, float | None] = {}
    for pool in dict.fromkeys(filter(None, map(pool_of, increases_by_replica))):
        members = {name: each for name, each in increases_by_replica.items() if pool_of(name) == pool}
        counters |= {f"{name}.{pool}": value
                     for name, value in (total_increases(members, pool) | balance(members)).items()}
    return counters


def balance(increases_by_replica: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    """How the work is divided over the replicas: the largest and the mean value of a replica, as counters of the run.

    `computed_tokens` are the prompt tokens without cached tokens, and the generated tokens. `tpot` is the mean time per
    output token in seconds. A value is left out if a replica does not count it, or if there is one replica.
    """
    values = {"computed_tokens": [_computed_tokens(each) for each in increases_by_replica.values()],
              "tpot": [_mean_tpot_s(each) for each in increases_by_replica.values()]}
    counters: dict[str, float] = {}
    for name, each in values.items():
        known = [value for value in each if value is not None]
        if len(known) == len(each) >= LEAST_REPLICAS:
            counters |= {f"replica_largest_{name}": max(known), f"replica_mean_{name}": sum(known) / len(known)}
    return counters


def _computed_tokens(counters: Mapping[str, float | None]) -> float | None:
    prompt, generated = counters.get("prompt_tokens"), counters.get("generation_tokens")
    if prompt is None or generated is None:
        return None
    return prompt - (counters.get("prompt_tokens_cached") or 0.0) + generated


def _mean_tpot_s(counters: Mapping[str, float | None]) -> float | None:
    total_s, count = counters.get("tpot_s_sum"), counters.get("tpot_count")
    return None if total_s is None or not count else total_s / count


class ReplicaLog:
    """Compares each reading of a service with the reading before."""

    def __init__(self) -> None:
        self._logs: dict[str, CounterLog] = {}
        self._present: set[str] | None = None
        self._changes: list[str] = []
        self._excused: frozenset[str] = frozenset()

    def excuse(self, replicas: Collection[str]) -> None:
        """Leave out the readings of these replicas until the next call. After that call readings begin anew."""
        self._excused = frozenset(replicas)
        for name in replicas:
            self._logs.pop(name, None)

    def take(self, replicas: Mapping[str, Mapping[str, float]], silent: Mapping[str, str]) -> None:
        """Compare a reading with the last one.

        Args:
            replicas: replica → its counters.
            silent: replica whose page could not be read → reason.
        """
        for name, counters in replicas.items():
            if name not in self._excused:
                self._logs.setdefault(name, CounterLog()).take(counters)
        present = {name for name in replicas if name != ALONE} | self._excused
        if self._present is not None:
            for name in sorted(self._present - present):
                reason = silent.get(name, "nothing lists the replica any more")
                self._changes.append(f"replica {name} vanished ({reason})")
            self._changes += [f"replica {name} appeared" for name in sorted(present - self._present)]
        self._present = present

    @property
    def present(self) -> frozenset[str]:
        """The replicas of the last reading; empty for a server alone."""
        return frozenset(self._present or ())

    @property
    def scaled(self) -> bool:
        """Whether a replica appeared or vanished since the last call of `scaling`."""
        return bool(self._changes)

    def restart(self) -> str | None:
        """Which processes restarted since the last call, with the evidence; None without evidence."""
        texts = [(name, log.restart()) for name, log in self._logs.items()]
        named = [f"replica {name}, {text}" if name != ALONE else text for name, text in texts if text is not None]
        return "; ".join(named) or None

    def scaling(self) -> str | None:
        """Which replicas appeared or vanished since the last call; None if none did."""
        changes, self._changes = self._changes, []
        several = next((text for log in self._logs.values() if (text := log.other_process()) is not None), None)
        return several or ", ".join(changes) or None
