"""Stamps: the kernel's where they can be believed, else the time of the reading and how late that may be."""

import struct
import time

import pytest

from pytest_llmperf.load import arrivals as module
from pytest_llmperf.load.arrivals import BIN_BITS, BINS, Histogram, ReadStamps

MS = 1_000_000


@pytest.fixture
def arrivals():
    made = ReadStamps()
    yield made
    made.close()


def note(wall_ns):
    return [(1, 35, struct.pack("@qq", wall_ns // 10**9, wall_ns % 10**9))]


def test_the_kernels_stamp_is_moved_to_the_monotonic_clock(arrivals):
    before_ns = time.monotonic_ns()
    wall_ns = time.time_ns()
    after_ns = time.monotonic_ns()
    stamp_ns = arrivals.stamp(note(wall_ns - 20 * MS), 0)
    assert before_ns - 5 * MS < stamp_ns + 20 * MS < after_ns + 5 * MS
    assert arrivals.delays.total == 1
    assert arrivals.delays.quantile_ns(0.99) > 15 * MS


def test_impossible_kernel_stamp_is_replaced_by_read_time(arrivals):
    """A wall clock that is set by an hour (fault 47) moves no stamp."""
    begun_ns = time.monotonic_ns()
    for wall_ns in (time.time_ns() - 3600 * 1000 * MS, time.time_ns() + 3600 * 1000 * MS, time.time_ns() - 50 * MS):
        assert begun_ns <= arrivals.stamp(note(wall_ns), begun_ns) <= time.monotonic_ns()
    assert (arrivals.delays.total, arrivals.errors.total) == (0, 3)


@pytest.fixture
def passes(monkeypatch):
    """Lets milliseconds pass on the clock that stamps read."""
    now_ns = [0]
    monkeypatch.setattr(module, "monotonic_ns", lambda: now_ns[0])

    def passes(ms):
        now_ns[0] += ms * MS
        return now_ns[0]

    return passes


def test_stamp_error_without_kernel_stamps_includes_two_poll_intervals(passes, arrivals):
    arrivals.polling()
    passes(20)
    arrivals.polling()
    passes(10)
    arrivals.stamp([], 0)
    assert 30 * MS <= arrivals.errors.quantile_ns(1.0) < 31 * MS


def test_full_poll_increases_stamp_error(passes, arrivals):
    for more in (False, False, True, True):
        passes(10)
        arrivals.polling(more=more)
    arrivals.stamp([], 0)
    assert 30 * MS <= arrivals.errors.quantile_ns(1.0) < 31 * MS
    passes(1)
    arrivals.polling()
    arrivals.stamp([], 0)
    assert arrivals.errors.quantile_ns(0.5) < 2 * MS


def test_a_request_that_was_sent_since_bounds_the_error(passes, arrivals):
    sent_ns = passes(30)
    passes(1)
    arrivals.stamp([], sent_ns)
    assert arrivals.errors.quantile_ns(1.0) < 2 * MS


class SlowClocks:
    """Every reading of a clock takes so long, a disturbed one longer; they give up on whoever reads for ever."""

    def __init__(self, read_ns):
        self.now_ns, self.read_ns, self.ahead_ns, self.readings = 0, read_ns, 10**18, 0

    def monotonic_ns(self):
        self.readings += 1
        assert self.readings < 10_000
        self.now_ns += self.read_ns * (1 if self.readings % 7 else 50)
        return self.now_ns

    def time_ns(self):
        return self.monotonic_ns() + self.ahead_ns


@pytest.mark.parametrize("read_ns", [30, 20_000])
def test_clocks_that_are_slow_to_read_are_synchronised_too(monkeypatch, read_ns):
    clocks = SlowClocks(read_ns)
    monkeypatch.setattr(module, "monotonic_ns", clocks.monotonic_ns)
    monkeypatch.setattr(module.time, "time_ns", clocks.time_ns)
    arrivals = ReadStamps()
    for ahead_ns in (10**18, 2 * 10**18):  # set meanwhile
        clocks.ahead_ns = ahead_ns
        for _ in range(3):
            arrivals.synchronise()
        came_ns = clocks.now_ns
        assert abs(arrivals.stamp(note(came_ns + ahead_ns), 0) - came_ns) <= 2 * read_ns
    assert arrivals.delays.total == 2
    arrivals.close()


def test_histogram_quantiles_are_upper_edges():
    histogram = Histogram()
    assert histogram.quantile_ns(0.5) is None
    for duration_ns in (0, -5, 1 << BIN_BITS, 10**12):
        histogram.add(duration_ns)
    assert histogram.quantile_ns(0.5) == 1 << BIN_BITS
    assert histogram.quantile_ns(0.75) == 2 << BIN_BITS
    assert histogram.quantile_ns(1.0) == BINS << BIN_BITS
