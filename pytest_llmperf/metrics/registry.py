"""The metrics of this package and of other packages: what docs and reports print, and what an SLO may name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from math import isfinite

from pytest_llmperf.doors import Door
from pytest_llmperf.errors import ConfigError, SloError, did_you_mean
from pytest_llmperf.metrics.energy import COST, JOULES_PER_TOKEN, UTILIZATION
from pytest_llmperf.metrics.families import FAMILIES, Family, family_named, turns_of
from pytest_llmperf.metrics.recovery import RECOVERY, WINDOW
from pytest_llmperf.metrics.server import POOLS, POSITION, SERVER, ServerFormula, acceptance_at
from pytest_llmperf.metrics.summary import ALIASES, STATS
from pytest_llmperf.metrics.units import Direction, Unit
from pytest_llmperf.model.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedMetric:
    """A number that a run has, computed by another package. SLOs, claims and baselines treat it like any metric.

    Args:
        api: version of the doors for which the metric was written: 1.
        name: as in SLO texts: lower-case letters, digits and "_".
        unit: of the value; shares are 0…1.
        direction: which way is better.
        take: the value of a run from its request records, ordered by intended send time, and from the increases of the
            server's counters under their canonical names. None if something that the formula needs is missing.
        formula: in words.
        needs: what must be there for the value to exist, in words.
        version: part of the formula id that is stored beside every number. Raise it when the formula changes.
    """

    api: int
    name: str
    unit: Unit
    direction: Direction
    take: Callable[[Sequence[RequestRecord], Mapping[str, float | None]], float | None]
    formula: str
    needs: str = "a served request"
    version: int = 1


METRICS = Door[AddedMetric]("metric", "an AddedMetric", lambda value: isinstance(value, AddedMetric), {})


def added_values(
    records: Sequence[RequestRecord], counters: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The value of each added metric in a run.

    Args:
        records: ordered by intended send time.
        counters: increases of the server's counters over the run.

    Raises:
        ConfigError: the function of a metric fails or gives no number. The message names the metric.
    """
    values: dict[str, float | None] = {}
    for metric in METRICS.values():
        try:
            value: object = metric.take(records, counters)
        except Exception as error:
            raise ConfigError(f"The metric {metric.name} fails on a run: {type(error).__name__}: {error}. Let the "
                              "function return None if a value is missing.") from error
        if value is not None and not (isinstance(value, int | float) and isfinite(value)):
            raise ConfigError(f"The metric {metric.name} gives {value!r} on a run. Let the function return a finite "
                              "number, or None if a value is missing.")
        values[metric.name] = value
    return values


class Source(Enum):
    """Who measured: our clock, the server, the GPU's driver, or a function of another package."""

    CLIENT = "client"
    SERVER = "server"
    GPU = "gpu"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number that a run has.

    Args:
        name: as in SLO texts, e.g. "ttft_p99".
        unit: of its value; shares are 0…1.
        direction: which way is better.
        formula_id: changes whenever the formula does; stored beside every number.
        formula: in words.
        source: our own clock, the server's counters, the GPU's driver, or another package.
        needs: what must be there for the value to exist.
        family, stat: "ttft" and "p99" for a statistic of a latency sample; None for anything else.
        limited: whether the metric is only defined with limits, as in "goodput(ttft <= 500ms)".
        per_token: whether it rests on how many tokens the answers have.
    """

    name: str
    unit: Unit
    direction: Direction
    formula_id: str
    formula: str
    source: Source
    needs: str
    family: str | None = None
    stat: str | None = None
    limited: bool = False
    per_token: bool = False

    @property
    def has_pools(self) -> bool:
        """Whether each pool of a deployment has a value of its own."""
        return self.source is Source.SERVER or self.name in ("energy_j", UTILIZATION)


def _statistic(family: Family, stat: str) -> Metric:
    words = {"mean": "mean", "max": "largest"}.get(stat, f"{stat} (linear interpolation)")
    return Metric(f"{family.name}_{stat}", Unit.MS, Direction.LOWER, f"{family.formula_id}/{stat}",
                  f"{words} of: {family.formula}", Source.CLIENT, family.needs, family.name, stat,
                  per_token=family.between_tokens)


def _run_level(name: str, unit: Unit, direction: Direction, formula: str, needs: str = "a served request",
               *, version: int = 1, limited: bool = False, per_token: bool = False) -> Metric:
    return Metric(name, unit, direction, f"{name}.{version}", formula, Source.CLIENT, needs, limited=limited,
                  per_token=per_token)


def _server(formula: ServerFormula) -> Metric:
    return Metric(formula.name, formula.unit, formula.direction, f"{formula.name}.{formula.version}", formula.formula,
                  Source.SERVER, formula.needs)


_USAGE = "a served request, and a server that reports its token counts in its usage"
_END = "last content chunk of a served request, or last intended send of any where that is later"
_DURATION = f"duration_s is first intended send → {_END}"


def _hit_rate(name: str) -> Metric:
    _, turns = turns_of(name) or ("", "")
    return _run_level(name, Unit.SHARE, Direction.HIGHER,
                      f"cached ÷ prompt tokens of the served requests of {turns} of conversations",
                      f"a served request of {turns}, and a server that reports cached tokens in its usage")


def _of_gpus(name: str, unit: Unit, formula: str, needs: str, *, direction: Direction = Direction.LOWER,
             per_token: bool = False) -> Metric:
    return Metric(name, unit, direction, f"{name}.1", formula, Source.GPU, needs, per_token=per_token)


_SEEN = "the energy counter or the power draw of the server's GPUs, as NVML reports them"
_OF_GPUS = (
    _of_gpus("energy_j", Unit.J,
             "increase of the energy counters of all GPUs over duration_s; without counters the integral of the "
             "sampled power (trapezoidal rule)", _SEEN),
    _of_gpus(JOULES_PER_TOKEN, Unit.J_PER_TOKEN, "energy_j ÷ output tokens of served requests",
             f"{_SEEN}, and a server that reports output tokens in its usage", per_token=True),
    _of_gpus("energy_gap", Unit.SHARE, "|integral of the sampled power ÷ increase of the energy counters − 1|",
             "both the energy counter and the power draw of the server's GPUs"),
    _of_gpus(UTILIZATION, Unit.SHARE,
             "mean over duration_s and all GPUs of the share of time in which a kernel ran (trapezoidal rule)",
             "the utilization of the server's GPUs, as NVML reports it", direction=Direction.HIGHER),
    _of_gpus(COST, Unit.COST,
             "GPUs · duration_s ÷ 3600 · price of a GPU hour ÷ output tokens of served requests · 10⁶",
             "a stated price of a GPU hour (gpu_hour_price), a server on GPUs that this session starts, and a server "
             "that reports output tokens in its usage", per_token=True),
)

_RUN_LEVEL = (
    _run_level("duration_s", Unit.S, Direction.LOWER, f"first intended send → {_END}", version=2),
    _run_level("request_throughput", Unit.REQUESTS_PER_S, Direction.HIGHER,
               f"served requests ÷ duration_s; {_DURATION}", version=2),
    _run_level("conversation_throughput", Unit.CONVERSATIONS_PER_S, Direction.HIGHER,
               f"conversations of which every turn was served ÷ duration_s; {_DURATION}", "a conversation"),
    _hit_rate("hit_rate_turn2plus"),
    _run_level("output_throughput", Unit.TOKENS_PER_S, Direction.HIGHER,
               f"output tokens of served requests ÷ duration_s; {_DURATION}", _USAGE, version=2, per_token=True),
    _run_level("total_token_throughput", Unit.TOKENS_PER_S, Direction.HIGHER,
               f"prompt and output tokens of served requests ÷ duration_s; {_DURATION}", _USAGE, version=2,
               per_token=True),
    _run_level("error_rate", Unit.SHARE, Direction.LOWER,
               "failed requests ÷ requests; without rate-limited requests and without what the client cancelled",
               "a request", version=2),
    _run_level("rate_limited_rate", Unit.SHARE, Direction.LOWER, "requests whose last answer is a refusal ÷ requests: "
               "HTTP 429, and HTTP 503 of admission control or with Retry-After", "a request", version=2),
    _run_level("cancelled_rate", Unit.SHARE, Direction.NEITHER,
               "requests that the client cancelled as the workload states ÷ requests", "a request"),
    _run_level("hung_requests", Unit.COUNT, Direction.LOWER,
               "requests that the client gave up because no byte, or no further byte, came in time", "a request"),
    _run_level(RECOVERY, Unit.S, Direction.LOWER,
               f"first event → end of the last disturbed window of {WINDOW} requests. A window is slow if a request "
               "failed or its median TTFT is more than 15 % above the largest median before the event. A slow window "
               "is disturbed if it follows the event or another slow window. Infinite if the last window is disturbed",
               f"perf.measure(…, events=[…]), and {WINDOW} answered requests before the first event"),
    _run_level("retries", Unit.COUNT, Direction.LOWER, "sends of requests beyond the first send of each", "a request"),
    _run_level("retried_prompt_tokens", Unit.COUNT, Direction.LOWER,
               "prompt tokens of each request × its sends beyond the first",
               "a request, and known lengths of the prompts that were sent again"),
    _run_level("coalesced_share", Unit.SHARE, Direction.LOWER,
               "content chunks that came in the same read as the one before ÷ gaps between content chunks",
               "a served request with at least two content chunks"),
    _run_level("kv_fragmentation", Unit.SHARE, Direction.NEITHER,
               "1 − Σ tokens ÷ Σ blocks × block size over the served requests, each at its end; blocks that requests "
               "share count for each", "a served request, and a server that reports token counts and block size"),
    _run_level("goodput", Unit.REQUESTS_PER_S, Direction.HIGHER,
               f"requests within every limit ÷ duration_s, a failed request never is; {_DURATION}",
               version=2, limited=True),
    _run_level("slo_attainment", Unit.SHARE, Direction.HIGHER,
               "requests within every limit ÷ requests, failed ones in the denominator only", limited=True),
)


def all_metrics() -> Mapping[str, Metric]:
    """All metrics by name: latency statistics, run level, energy and cost, counters of the server with draft positions
    as "pos0", then the metrics of other packages."""
    added = {metric.name: _added(metric) for metric in METRICS.values()}
    return {**_shipped(), **added} if added else _shipped()


def _added(metric: AddedMetric) -> Metric:
    """The row of a metric of another package.

    Raises:
        ConfigError: this package has a metric of that name, or a formula cannot name it.
    """
    if not metric.name.isidentifier():
        raise ConfigError(f"{METRICS.owner(metric.name)} adds the metric {metric.name!r}. Name it by letters, digits "
                          "and underscores.")
    if metric.name in _shipped() or family_named(metric.name) is not None:
        raise ConfigError(f"{METRICS.owner(metric.name)} adds the metric {metric.name!r}, which pytest-llmperf has, "
                          "too. Choose another name.")
    return Metric(metric.name, metric.unit, metric.direction, f"{metric.name}.{metric.version}", metric.formula,
                  Source.ADDED, metric.needs)


@cache
def _shipped() -> dict[str, Metric]:
    latencies = (_statistic(family, stat) for family in FAMILIES.values() for stat in STATS)
    server = map(_server, [*SERVER.values(), acceptance_at(0)])
    return {metric.name: metric for metric in (*latencies, *_RUN_LEVEL, *_OF_GPUS, *server)}


def find(name: str) -> Metric:
    """The metric of that name; "ttft_median" is "ttft_p50".

    Raises:
        SloError: no such metric; the message suggests near ones, or the statistics of a latency named without one.
    """
    if not isinstance(name, str):
        raise SloError(f"a metric must be a text such as 'ttft_p50', got {name!r}")
    metric = _find_uncached(name)
    if metric is not None:
        return metric
    if family_named(name) is not None:
        stats = ", ".join(f"{name}_{stat}" for stat in STATS)
        raise SloError(f"{name!r} names all values of a latency; write one statistic of them: {stats}")
    raise SloError(f"there is no metric {name!r}{suggestion(name, all_metrics())}")


def is_metric(name: str) -> bool:
    """Whether `find` has it: files of another version may name others."""
    return _find_uncached(name) is not None


def _find_uncached(name: str) -> Metric | None:
    family, _, stat = name.rpartition("_")
    metric = all_metrics().get(f"{family}_{ALIASES.get(stat, stat)}") if family else None
    metric = metric or all_metrics().get(name) or _of_turns(name)
    if metric is None and (position := POSITION.fullmatch(name)):
        return _server(acceptance_at(int(position[1])))
    return metric or _of_pool(name)


def _of_pool(name: str) -> Metric | None:
    """A metric of one pool of a deployment: "prefill_tokens.decode"."""
    whole, _, pool = name.partition(".")
    metric = all_metrics().get(whole) if pool in POOLS else None
    if metric is None or not metric.has_pools:
        return None
    return replace(metric, name=name, formula_id=f"{metric.formula_id}/{pool}",
                   formula=f"{metric.formula}; of the {pool} servers alone")


@cache
def _of_turns(name: str) -> Metric | None:
    """A metric of some turns of conversations."""
    sample, _, stat = name.rpartition("_")
    if (named := turns_of(name)) is not None and named[0] not in FAMILIES:
        return _hit_rate(name)
    family = family_named(sample)
    stat = ALIASES.get(stat, stat)
    return None if family is None or family.turns is None or stat not in STATS else _statistic(family, stat)


def per_token(names: Iterable[str]) -> list[str]:
    """The metrics and latency samples that depend on the number of tokens of the answers."""
    return [name for name in names
            if (find(name).per_token if (family := family_named(name)) is None else family.between_tokens)]


def streamed(names: Iterable[str]) -> list[str]:
    """The metrics and latency samples that need a stream: a whole answer has none of them."""
    families = (find(name).family if family_named(name) is None else name for name in names)
    return [family for family in families if family is not None and find_family(family).streamed]


def find_family(name: str) -> Family:
    """The latency sample of that name, e.g. "ttft".

    Raises:
        SloError: no such sample.
    """
    if (family := family_named(name)) is not None:
        return family
    raise SloError(f"there is no latency sample {name!r}{suggestion(name, FAMILIES)}")


def suggestion(name: str, names: Iterable[str]) -> str:
    """"; did you mean …?", or all names where none is near."""
    candidates = list(names)
    meant = did_you_mean(name.lower(), candidates, "; did you mean {}?", most=3)
    return meant or f"; there are: {', '.join(candidates)}"
