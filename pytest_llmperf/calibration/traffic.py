"""Traffic of simulated servers whose requests are not independent: queues, slow spells, outages, varying speed.

Each process is stationary: its percentiles, means and rates do not depend on the length of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

RATE_PER_S = 10.0
STEP_S = 0.02
TTFT_S = 0.1
#: Log-sd of one request's TTFT, and of one gap, beside what the process does to all of them.
TTFT_SPREAD, GAP_SPREAD = 0.3, 0.1
#: Slots of the queue's server, and requests after which a queue that began empty is stationary.
SLOTS, BURN_IN = 4, 4000
SERVICE_SPREAD = 0.5
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
Process = Callable[["np.random.Generator", int, int], Traffic]


def steady(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
    """Independent requests."""
    return _served(rng, requests, gaps)


def varying_speed(correlation_s: float, spread: float = 0.3) -> Process:
    """The logarithm of the speed is a stationary Ornstein–Uhlenbeck process.

    Args:
        correlation_s: time in which its autocorrelation falls to 1/e.
        spread: its standard deviation.
    """
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        import numpy as np
        from scipy.signal import lfilter

        intended_s, cells = _timeline(rng, requests, gaps)
        keep = float(np.exp(-STEP_S / correlation_s))
        shocks = rng.standard_normal(cells) * (1 - keep**2) ** 0.5
        shocks[0] /= (1 - keep**2) ** 0.5
        return _served(rng, requests, gaps, intended_s, np.exp(spread * lfilter([1.0], [1.0, -keep], shocks)))

    return process


def slow_spells(every_s: float, length_s: float, times: float) -> Process:
    """Spells in which everything takes `times` as long; the pauses between them are exponential.

    Args:
        every_s: mean time from one spell to the next.
        length_s: of a spell.
        times: how many times slower.
    """
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        import numpy as np

        intended_s, cells = _timeline(rng, requests, gaps)
        slow = _spells(rng, np.linspace(0, cells * STEP_S, cells), every_s, length_s)
        return _served(rng, requests, gaps, intended_s, np.where(slow, times, 1.0))

    return process


def stalling_steps(share: float, times: float) -> Process:
    """Single steps, independent of each other, that take `times` as long for every stream."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        import numpy as np

        intended_s, cells = _timeline(rng, requests, gaps)
        return _served(rng, requests, gaps, intended_s, np.where(rng.random(cells) < share, times, 1.0))

    return process


def stalled_requests(share: float, times: float) -> Process:
    """Single requests, independent of each other, whose first token takes `times` as long."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        import numpy as np

        traffic = _served(rng, requests, gaps)
        traffic.ttft_s[:] *= np.where(rng.random(requests) < share, times, 1.0)
        return traffic

    return process


def outages(every_s: float, length_s: float) -> Process:
    """Every request that is due in an outage fails; the pauses between outages are exponential."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        traffic = _served(rng, requests, gaps)
        traffic.failed[:] = _spells(rng, traffic.intended_s, every_s, length_s)
        return traffic

    return process


@dataclass(frozen=True, slots=True)
class Queue:
    """M/G/c: Poisson arrivals wait for one of the slots; the service time is the TTFT of an empty server.

    Args:
        load: share of the slots' time that the requests take, below 1.
        slots: requests that are served at once.
        spread: log-sd of the service time.
    """

    load: float
    slots: int = SLOTS
    spread: float = SERVICE_SPREAD

    def __call__(self, rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        traffic = _served(rng, requests, gaps)
        unfinished_s = self.stationary()[1][rng.integers(QUEUES)]
        service_s = self._service_s(rng, requests)
        traffic.ttft_s[:] = _waits_s(traffic.intended_s, service_s, unfinished_s) + service_s
        return traffic

    def _service_s(self, rng: np.random.Generator, requests: int) -> Array:
        mean_s = self.load * self.slots / RATE_PER_S
        return mean_s * rng.lognormal(-self.spread**2 / 2, self.spread, requests)

    @lru_cache(maxsize=1)  # noqa: B019 - keyed by the load
    def stationary(self) -> tuple[Array, Array]:
        """TTFTs of `QUEUES` independent queues, pooled, and the unfinished work of their slots before the next request.

        The queues are simulated side by side, with the same random numbers in each process.
        """
        import numpy as np

        rng, unfinished_s = np.random.default_rng(0), np.zeros((QUEUES, self.slots))
        self.side_by_side(rng, unfinished_s, BURN_IN)
        return self.side_by_side(rng, unfinished_s, REQUESTS_OF_QUEUE).ravel(), unfinished_s

    def side_by_side(self, rng: np.random.Generator, unfinished_s: Array, requests: int) -> Array:
        """TTFTs of the next requests of independent queues, requests × queues.

        Args:
            rng: random generator.
            unfinished_s: queues × slots: what each slot still has to do, the free slot first; brought up to date.
            requests: of each queue.
        """
        import numpy as np

        queues = len(unfinished_s)
        ttfts_s = np.empty((requests, queues))
        for request in range(requests):
            unfinished_s[:, 0] += self._service_s(rng, queues)
            ttfts_s[request] = unfinished_s[:, 0]
            unfinished_s -= rng.exponential(1 / RATE_PER_S, queues)[:, None]
            np.maximum(unfinished_s, 0, out=unfinished_s)
            unfinished_s.sort(1)
        return ttfts_s


def _waits_s(due_s: Array, service_s: Array, unfinished_s: Array) -> list[float]:
    """First come, first served, by the slot that is free first (Kiefer and Wolfowitz, 1955).

    Args:
        due_s, service_s: of each request.
        unfinished_s: what each slot still has to do when the first request is due.
    """
    free_s = (due_s[0] + unfinished_s).tolist()
    heapify(free_s)
    waits_s = []
    for due, service in zip(due_s.tolist(), service_s.tolist(), strict=True):
        start = max(due, free_s[0])
        heapreplace(free_s, start + service)
        waits_s.append(start - due)
    return waits_s


def _timeline(rng: np.random.Generator, requests: int, gaps: int) -> tuple[Array, int]:
    """When each request is due, and the steps of `STEP_S` until all answers have ended, however slow they were."""
    intended_s = rng.exponential(1 / RATE_PER_S, requests).cumsum()
    return intended_s, int((intended_s[-1] + 10 * (TTFT_S + gaps * STEP_S)) / STEP_S) + 1000


def _spells(rng: np.random.Generator, at_s: Array, every_s: float, length_s: float) -> npt.NDArray[np.bool_]:
    """Whether each time lies in a spell; the first time is a random one of the process."""
    import numpy as np

    count = int(2 * (at_s[-1] + 60 * every_s) / every_s) + 20
    starts_s = (rng.exponential(every_s - length_s, count) + length_s).cumsum() - 50 * every_s
    latest = starts_s.searchsorted(at_s, side="right") - 1
    return np.asarray(at_s - starts_s[latest] < length_s)


def _served(rng: np.random.Generator, requests: int, gaps: int, intended_s: Array | None = None,
            slowness: Array | None = None) -> Traffic:
    """Requests on a server whose every step of `STEP_S` has a factor; 1 where there is none."""
    import numpy as np

    due_s = rng.exponential(1 / RATE_PER_S, requests).cumsum() if intended_s is None else intended_s
    factors = np.ones(1) if slowness is None else slowness

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
