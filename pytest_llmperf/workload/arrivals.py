"""When requests arrive: frozen descriptions that yield offsets in nanoseconds from the start of a run.

Rates are requests per second. Random gaps are scaled so that the last of n requests arrives exactly at n / rate
seconds, as `vllm bench serve` does: the offered rate does not depend on the seed, only the burstiness inside it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random

from pytest_llmperf.clock import seconds
from pytest_llmperf.errors import SpecError, echo
from pytest_llmperf.workload.arguments import integer, number, plain
from pytest_llmperf.workload.prompts import stream

# A gap is a power of a draw of 53 bits: 2 ** (-53 / burstiness) at least, and below 2 ** -1074 a float is 0.
_LEAST_BURSTINESS = 0.05
_MOST = 1e9  # beyond it, and below its inverse, no clock resolves the times


class Arrivals(ABC):
    """An arrival process. Equal descriptions give equal offsets, in every Python version."""

    __slots__ = ()

    @abstractmethod
    def offsets_ns(self, count: int, seed: int) -> tuple[int, ...] | None:
        """Intended send times of `count` requests in ns from the start of the run, ascending; None in a closed loop."""

    @property
    def concurrency(self) -> int | None:
        """Largest number of requests in flight, in a closed loop or with `at_most`; None without a limit."""
        return None

    @property
    def capacity(self) -> int | None:
        """Largest number of requests that the arrival process has times for; None if unlimited."""
        return None

    @property
    def mean_rate(self) -> float:
        """Offered requests per second.

        Raises:
            SpecError: the arrival process has no single rate.
        """
        raise SpecError(f"{echo(self)} has no one rate that could be raised. Use constant(8), poisson(8) or "
                        "gamma(8, …).")

    def at_rate(self, rate: float) -> Arrivals:
        """The same arrival process with another mean rate, in requests per second.

        Raises:
            SpecError: the arrival process has no single rate, or `rate` is not a number from 1e-9 to 1e9.
        """
        raise SpecError(f"{self} cannot be sent at {rate:g}/s. Use constant(8), poisson(8) or gamma(8, …).")

    def at_most(self, limit: int) -> Arrivals:
        """The same arrival process with at most `limit` requests in flight, as a client with `limit` connections sends.

        A request that is due while `limit` requests are in flight is sent when one of them ends. That end is then its
        intended send time, so its latency leaves out the wait for a free slot.

        Raises:
            SpecError: `limit` is not a whole number ≥ 1.
        """
        return _Limited(self, integer("at_most", "limit", limit))

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, repr=False)
class _Constant(Arrivals):
    rate: float

    @property
    def mean_rate(self) -> float:
        return self.rate

    def at_rate(self, rate: float) -> Arrivals:
        return constant(rate)

    def offsets_ns(self, count: int, seed: int) -> tuple[int, ...]:  # noqa: ARG002 - nothing is random here
        return tuple(seconds(i / self.rate) for i in range(count))

    def __str__(self) -> str:
        return f"constant({plain(self.rate)})"


@dataclass(frozen=True, slots=True, repr=False)
class _Gamma(Arrivals):
    rate: float
    burstiness: float = 1.0

    @property
    def mean_rate(self) -> float:
        return self.rate

    def at_rate(self, rate: float) -> Arrivals:
        return gamma(rate, self.burstiness)

    def offsets_ns(self, count: int, seed: int) -> tuple[int, ...]:
        return tuple(seconds(t / self.rate) for t in _scaled_sums(count, self.burstiness, seed))

    def __str__(self) -> str:
        if self.burstiness == 1:
            return f"poisson({plain(self.rate)})"
        return f"gamma({plain(self.rate)}, burstiness={plain(self.burstiness)})"


@dataclass(frozen=True, slots=True, repr=False)
class _Ramp(Arrivals):
    start_rate: float
    end_rate: float

    def offsets_ns(self, count: int, seed: int) -> tuple[int, ...]:
        """Poisson in stretched time: with rate(t) = a + k·t the mean count is Λ(t) = a·t + k·t²/2, inverted here."""
        a = self.start_rate
        k = (self.end_rate**2 - a**2) / (2 * count)
        return tuple(
            seconds(2 * s / (a + math.sqrt(max(0.0, a * a + 2 * k * s))))  # rounding may take the end rate below 0
            for s in _scaled_sums(count, 1.0, seed)
        )

    def __str__(self) -> str:
        return f"ramp({plain(self.start_rate)}, {plain(self.end_rate)})"


@dataclass(frozen=True, slots=True, repr=False)
class _AtTimes(Arrivals):
    times_s: tuple[float, ...]

    def offsets_ns(self, count: int, seed: int) -> tuple[int, ...]:  # noqa: ARG002 - nothing is random here
        return tuple(seconds(t) for t in self.times_s[:count])

    @property
    def capacity(self) -> int:
        return len(self.times_s)

    def __str__(self) -> str:
        return f"at_times(({', '.join(map(plain, self.times_s))},))"


@dataclass(frozen=True, slots=True, repr=False)
class Recorded(Arrivals):
    """Built by `recorded`."""

    speed: float = 1.0
    rate: float | None = None

    def offsets_ns(self, count: int, seed: int) -> tuple[int, ...]:  # noqa: ARG002 - the trace has the times
        raise SpecError(f"{self}: only trace(…) has recorded times.")

    def replayed_ns(self, times_ns: Sequence[int]) -> tuple[int, ...]:
        """Offsets from the first of these ascending times, at the speed or at the rate that was asked for.

        Raises:
            SpecError: a rate was asked for and all times are equal.
        """
        first, last = times_ns[0], times_ns[-1]
        if self.rate is None:
            return tuple(round((time - first) / self.speed) for time in times_ns)
        if first == last:
            raise SpecError(f"{self}: {len(times_ns)} requests at one time have no rate to scale. "
                            f"Use recorded() or poisson({plain(self.rate)}).")
        span_ns = seconds(len(times_ns) / self.rate)
        return tuple(round((time - first) * span_ns / (last - first)) for time in times_ns)

    @property
    def mean_rate(self) -> float:
        if self.rate is None:
            raise SpecError(f"{self} has the trace's own rate. Use recorded(rate=8) for a search.")
        return self.rate

    def at_rate(self, rate: float) -> Arrivals:
        return recorded(rate=rate)

    def at_most(self, limit: int) -> Arrivals:
        raise SpecError(f"{self}.at_most({limit!r}): the times of a trace have no limit of requests in flight. Use "
                        "poisson(8).at_most(16) or closed(16).")

    def __str__(self) -> str:
        given = f"rate={plain(self.rate)}" if self.rate is not None else f"speed={plain(self.speed)}"
        return f"recorded({'' if given == 'speed=1' else given})"


@dataclass(frozen=True, slots=True, repr=False)
class _Closed(Arrivals):
    limit: int

    def offsets_ns(self, count: int, seed: int) -> None:  # noqa: ARG002 - the server sets the pace
        return None

    @property
    def concurrency(self) -> int:
        return self.limit

    def at_most(self, limit: int) -> Arrivals:
        raise SpecError(f"{self}.at_most({limit!r}): a closed loop is a limit of requests in flight already. "
                        f"Write closed({limit!r}).")

    def __str__(self) -> str:
        return f"closed({self.limit})"


@dataclass(frozen=True, slots=True, repr=False)
class _Limited(Arrivals):
    """Built by `Arrivals.at_most`."""

    arrivals: Arrivals
    limit: int

    @property
    def concurrency(self) -> int:
        return self.limit

    @property
    def capacity(self) -> int | None:
        return self.arrivals.capacity

    @property
    def mean_rate(self) -> float:
        return self.arrivals.mean_rate

    def at_rate(self, rate: float) -> Arrivals:
        return self.arrivals.at_rate(rate).at_most(self.limit)

    def at_most(self, limit: int) -> Arrivals:
        return self.arrivals.at_most(limit)

    def offsets_ns(self, count: int, seed: int) -> tuple[int, ...] | None:
        return self.arrivals.offsets_ns(count, seed)

    def __str__(self) -> str:
        return f"{self.arrivals}.at_most({self.limit})"


def constant(rate: float) -> Arrivals:
    """Send a request every 1/rate seconds, the first at 0 s.

    Args:
        rate: requests per second, from 1e-9 to 1e9; conversations per second of `multi_turn`.

    Raises:
        SpecError: the rate is not a number from 1e-9 to 1e9.
    """
    return _Constant(_rate("constant", rate))


def poisson(rate: float) -> Arrivals:
    """Send requests with independent, exponentially distributed gaps of mean 1/rate seconds.

    Args:
        rate: requests per second, from 1e-9 to 1e9; conversations per second of `multi_turn`.

    Raises:
        SpecError: the rate is not a number from 1e-9 to 1e9.
    """
    return _Gamma(_rate("poisson", rate))


def gamma(rate: float, burstiness: float) -> Arrivals:
    """Send requests with gamma-distributed gaps of mean 1/rate seconds and shape `burstiness`.

    Args:
        rate: requests per second, from 1e-9 to 1e9; conversations per second of `multi_turn`.
        burstiness: shape of the gaps. 1 is a Poisson process; a smaller shape is burstier, a larger one more regular.

    Raises:
        SpecError: the rate is not a number from 1e-9 to 1e9, or the burstiness is not a number from 0.05 to 1e9. With a
            burstiness below 0.05, gaps could be too short for a float.
    """
    shape = number("gamma", "burstiness", burstiness, least=_LEAST_BURSTINESS, most=_MOST)
    return _Gamma(_rate("gamma", rate), shape)


def ramp(start_rate: float, end_rate: float) -> Arrivals:
    """Send requests as a Poisson process whose rate changes linearly with time.

    Args:
        start_rate: requests per second at 0 s.
        end_rate: requests per second at the last request.

    Raises:
        SpecError: a rate is not a number from 1e-9 to 1e9.
    """
    return _Ramp(_rate("ramp", start_rate, "start_rate"), _rate("ramp", end_rate, "end_rate"))


def at_times(times_s: Iterable[float]) -> Arrivals:
    """Send requests at stated times.

    Args:
        times_s: ascending seconds from the start of the run.

    Raises:
        SpecError: `times_s` is not a list, is empty, is not ascending, or contains a value that is not a number ≥ 0.
    """
    if not isinstance(times_s, Iterable):
        raise SpecError(f"at_times: give the times as a list, at_times([0, 0.5, 2]), got {times_s!r}.")
    times = tuple(number("at_times", f"times_s[{place}]", time, least=0) for place, time in enumerate(times_s))
    if not times:
        raise SpecError("at_times: give at least one time, as in at_times([0, 0.5, 2]).")
    for place, (earlier, later) in enumerate(pairwise(times), start=1):
        if later < earlier:
            raise SpecError(f"at_times: times are in ascending order, and times_s[{place}] is {plain(later)} after "
                            f"{plain(earlier)}. Sort them.")
    return _AtTimes(times)


def recorded(speed: float | None = None, rate: float | None = None) -> Arrivals:
    """Send the requests of a `trace` at its recorded times.

    Args:
        speed: 2 replays the trace in half of its time.
        rate: scale the times so that the last of n requests arrives at n / rate seconds.

    Raises:
        SpecError: both are given, or one is not a number from 1e-9 to 1e9.
    """
    if rate is None:
        return Recorded(_rate("recorded", 1.0 if speed is None else speed, "speed"))
    if speed is not None:
        raise SpecError("recorded: give speed= or rate=, not both.")
    return Recorded(rate=_rate("recorded", rate))


def closed(concurrency: int) -> Arrivals:
    """Keep `concurrency` requests in flight in a closed loop: each finished request triggers the next request.

    Args:
        concurrency: number of requests in flight.

    Raises:
        SpecError: `concurrency` is not a whole number ≥ 1.
    """
    return _Closed(integer("closed", "concurrency", concurrency))


def _rate(call: str, value: float, name: str = "rate") -> float:
    return number(call, name, value, least=1 / _MOST, most=_MOST)


def _scaled_sums(count: int, shape: float, seed: int) -> list[float]:
    """Running sums of `count` gamma gaps, scaled so that the last one is `count`."""
    rng = stream(seed, "arrivals")
    draw = _exponential if shape == 1 else _gamma_variate
    sums = list(accumulate(draw(rng, shape) for _ in range(count)))
    return [s * count / sums[-1] for s in sums]


def _exponential(rng: Random, shape: float) -> float:  # noqa: ARG001 - one signature for both draws
    return -math.log(1.0 - rng.random())


def _gamma_variate(rng: Random, shape: float) -> float:
    """Gamma with scale 1: Marsaglia and Tsang, "A simple method for generating gamma variables" (ACM TOMS 26, 2000)."""
    if shape < 1:
        return _gamma_variate(rng, shape + 1) * math.pow(1.0 - rng.random(), 1 / shape)
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x = math.sqrt(-2 * math.log(1.0 - rng.random())) * math.cos(2 * math.pi * rng.random())  # Box-Muller
        v = (1 + c * x) ** 3
        if v > 0 and math.log(1.0 - rng.random()) < x * x / 2 + d - d * v + d * math.log(v):
            return d * v
