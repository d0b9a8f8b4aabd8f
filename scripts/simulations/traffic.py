"""Traffic of simulated servers whose requests are not independent: queues, slow spells, outages, varying speed.

Each process is stationary: its percentiles, means and rates do not depend on the length of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

Array = npt.NDArray[np.float64]
RATE_PER_S = 10.0
STEP_S = 0.02
TTFT_S = 0.1
#: Log-sd of one request's TTFT, and of one gap, beside what the process does to all of them.
TTFT_SPREAD, GAP_SPREAD = 0.3, 0.1
#: Requests after which a queue that began empty is stationary.
BURN_IN = 4000
#: Queues that are simulated side by side, and requests of each after the burn-in.
QUEUES, REQUESTS_OF_QUEUE = 4000, 2000


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a simulated server did to the requests of one run, by intended send time.

    Args:
        intended_s: when each request was due.
        ttft_s: of each request.
        gaps_s: requests × gaps between tokens.
        failed: whether each request failed.
    """

    intended_s: Array
    ttft_s: Array
    gaps_s: Array
    failed: npt.NDArray[np.bool_]


#: (random generator, number of requests, gaps of each answer) → what they saw.
Process = Callable[[np.random.Generator, int, int], Traffic]
#: (random generator, number of steps) → how many times longer each step of a server takes.
Slowness = Callable[[np.random.Generator, int], Array]


def steady(rng: np.random.Generator, requests: int, gaps: int, slowness: Slowness | None = None) -> Traffic:
    """Independent requests, on a server whose steps of `STEP_S` each have a factor."""
    due_s = rng.exponential(1 / RATE_PER_S, requests).cumsum()
    # Until all answers have ended, however slow they were.
    steps = int((due_s[-1] + 10 * (TTFT_S + gaps * STEP_S)) / STEP_S) + 1000
    factors = np.ones(1) if slowness is None else slowness(rng, steps)

    def factor(at_s: Array) -> Array:
        return np.asarray(factors[np.minimum((at_s / STEP_S).astype(np.int64), len(factors) - 1)])

    ttft_s = TTFT_S * rng.lognormal(0, TTFT_SPREAD, requests) * factor(due_s)
    noise = STEP_S * rng.lognormal(0, GAP_SPREAD, (gaps, requests))
    now_s = due_s + ttft_s
    gaps_s = np.empty((gaps, requests))
    for number in range(gaps):
        gaps_s[number] = noise[number] * factor(now_s)
        now_s = now_s + gaps_s[number]
    return Traffic(due_s, ttft_s, gaps_s.T, np.zeros(requests, dtype=np.bool_))


def autoregressive(rng: np.random.Generator, count: int, keep: float) -> Array:
    """Normal values of sd 1, each of which keeps this part of the one before."""
    shocks = rng.standard_normal(count) * (1 - keep**2) ** 0.5
    shocks[0] /= (1 - keep**2) ** 0.5
    return np.asarray(lfilter([1.0], [1.0, -keep], shocks))


def varying_speed(correlation_s: float, spread: float = 0.3) -> Process:
    """The logarithm of the speed is a stationary Ornstein–Uhlenbeck process.

    Args:
        correlation_s: time in which its autocorrelation falls to 1/e.
        spread: its standard deviation.
    """
    keep = float(np.exp(-STEP_S / correlation_s))
    return partial(steady, slowness=lambda rng, steps: np.exp(spread * autoregressive(rng, steps, keep)))


def slow_spells(every_s: float, length_s: float, times: float) -> Process:
    """Spells in which everything takes `times` as long; the pauses between them are exponential.

    Args:
        every_s: mean time from one spell to the next.
        length_s: of a spell.
        times: how many times slower.
    """
    return partial(steady, slowness=lambda rng, steps: np.where(
        _spells(rng, np.linspace(0, steps * STEP_S, steps), every_s, length_s), times, 1.0))


def stalling_steps(share: float, times: float) -> Process:
    """Single steps, independent of each other, that take `times` as long for every stream."""
    return partial(steady, slowness=lambda rng, steps: np.where(rng.random(steps) < share, times, 1.0))


def with_ttfts(ttft_factors: Slowness) -> Process:
    """Requests whose TTFT is the constant of a server times such factors."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        return replace(steady(rng, requests, gaps), ttft_s=TTFT_S * ttft_factors(rng, requests))

    return process


def stalled_requests(share: float, times: float) -> Process:
    """Single requests, independent of each other, whose first token takes `times` as long."""
    return with_ttfts(lambda rng, requests: rng.lognormal(0, TTFT_SPREAD, requests) * np.where(
        rng.random(requests) < share, times, 1.0))


def like_neighbours(keep: float) -> Process:
    """The logarithms of successive TTFTs are autocorrelated."""
    return with_ttfts(lambda rng, requests: np.exp(TTFT_SPREAD * autoregressive(rng, requests, keep)))


def heavy_tailed(index: float) -> Process:
    """Independent requests whose TTFT has Pareto's distribution; the variance is infinite up to an index of 2."""
    return with_ttfts(lambda rng, requests: 1 + rng.pareto(index, requests))


def outages(every_s: float, length_s: float) -> Process:
    """Every request that is due in an outage fails; the pauses between outages are exponential."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        traffic = steady(rng, requests, gaps)
        return replace(traffic, failed=_spells(rng, traffic.intended_s, every_s, length_s))

    return process


def _spells(rng: np.random.Generator, at_s: Array, every_s: float, length_s: float) -> npt.NDArray[np.bool_]:
    """Whether each time lies in a spell; the first time is a random one of the process."""
    count = int(2 * (at_s[-1] + 60 * every_s) / every_s) + 20
    starts_s = (rng.exponential(every_s - length_s, count) + length_s).cumsum() - 50 * every_s
    latest = starts_s.searchsorted(at_s, side="right") - 1
    return np.asarray(at_s - starts_s[latest] < length_s)


@dataclass(frozen=True, slots=True)
class Queue:
    """M/G/c: Poisson arrivals wait for one of the slots; the service time is the TTFT of an empty server.

    Args:
        load: share of the slots' time that the requests take, below 1.
        slots: requests that are served at once.
        spread: log-sd of the service time.
    """

    load: float
    slots: int = 4
    spread: float = 0.5

    def __call__(self, rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        traffic = steady(rng, requests, gaps)
        unfinished_s = self.stationary()[1][[rng.integers(QUEUES)]].copy()
        pauses_s = np.diff(traffic.intended_s, append=traffic.intended_s[-1])
        return replace(traffic, ttft_s=self.ttfts_s(rng, unfinished_s, pauses_s[:, None]).ravel())

    @lru_cache(maxsize=1)  # noqa: B019 - keyed by the load
    def stationary(self) -> tuple[Array, Array]:
        """TTFTs of `QUEUES` independent queues, pooled, and the unfinished work of their slots before the next request.

        The queues are simulated side by side, with the same random numbers each time.
        """
        rng, unfinished_s = np.random.default_rng(0), np.zeros((QUEUES, self.slots))
        for requests in (BURN_IN, REQUESTS_OF_QUEUE):
            ttfts_s = self.ttfts_s(rng, unfinished_s, rng.exponential(1 / RATE_PER_S, (requests, QUEUES)))
        return ttfts_s.ravel(), unfinished_s

    def ttfts_s(self, rng: np.random.Generator, unfinished_s: Array, pauses_s: Array) -> Array:
        """TTFTs of independent queues, requests × queues: first come, first served (Kiefer and Wolfowitz, 1955).

        Args:
            rng: random generator.
            unfinished_s: queues × slots: what each slot still has to do, the free slot first; brought up to date.
            pauses_s: after each request of each queue, the time until the next.
        """
        mean_s = self.load * self.slots / RATE_PER_S
        ttfts_s = mean_s * rng.lognormal(-self.spread**2 / 2, self.spread, pauses_s.shape)
        for ttft_s, pause_s in zip(ttfts_s, pauses_s, strict=True):
            unfinished_s[:, 0] += ttft_s
            ttft_s[:] = unfinished_s[:, 0]
            unfinished_s -= pause_s[:, None]
            np.maximum(unfinished_s, 0, out=unfinished_s)
            unfinished_s.sort(1)
        return ttfts_s
