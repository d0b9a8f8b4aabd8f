"""The estimate of another host's clock contains the planted offset and drift, whatever the delays."""

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_llmperf.load.host_clock import ClockExchange, HostClock

S = 1_000_000_000
MS = 1_000_000
DELAYS_NS = st.tuples(st.integers(1, 20 * MS), st.integers(1, 20 * MS))


def asked(our_ns, clock, there_ns, back_ns):
    """An exchange with a host whose clock reads `clock(t)` at our time t."""
    return ClockExchange(our_ns, clock(our_ns + there_ns), our_ns + there_ns + back_ns)


def drifting(offset_ns, ppm):
    return lambda our_ns: round(our_ns * (1 + ppm / 1e6)) + offset_ns


@st.composite
def exchanges_with(draw):
    clock = drifting(draw(st.integers(-10**15, 10**15)), draw(st.floats(-900, 900)))
    begin_ns = draw(st.integers(0, 10**15))
    delays_ns = draw(st.lists(DELAYS_NS, min_size=2, max_size=40))
    gaps_ns = draw(st.lists(st.integers(0, 5 * S), min_size=len(delays_ns), max_size=len(delays_ns)))
    found, at_ns = [], begin_ns
    for (there_ns, back_ns), gap_ns in zip(delays_ns, gaps_ns, strict=True):
        found.append(asked(at_ns, clock, there_ns, back_ns))
        at_ns = found[-1].received_ns + gap_ns
    return clock, found


@given(exchanges_with(), st.floats(0, 1))
def test_interval_contains_planted_clock(planted, share):
    clock, exchanges = planted
    host_clock = HostClock(exchanges)
    begin_ns, end_ns = exchanges[0].sent_ns, exchanges[-1].received_ns
    our_ns = round(begin_ns + share * (end_ns - begin_ns))
    host_ns = clock(our_ns)
    rounding_ns = 2
    assert abs(host_clock.our_ns(host_ns) - our_ns) <= host_clock.error_ns(host_ns) + rounding_ns
    assert host_clock.error_ns(host_ns) <= host_clock.largest_error_ns(clock(begin_ns), clock(end_ns)) + rounding_ns
    assert host_clock.contradiction_ns <= rounding_ns


@given(exchanges_with(), st.floats(0, 1))
def test_round_trip_conversion_stays_within_error(planted, share):
    _, exchanges = planted
    host_clock = HostClock(exchanges)
    our_ns = round(exchanges[0].sent_ns + share * (exchanges[-1].received_ns - exchanges[0].sent_ns))
    host_ns = host_clock.host_ns(our_ns)
    assert abs(host_clock.our_ns(host_ns) - our_ns) <= 2 * host_clock.error_ns(host_ns) + 2


@given(exchanges_with())
def test_drift_interval_contains_planted_drift(planted):
    clock, exchanges = planted
    drift = HostClock(exchanges).drift_ppm
    if drift is None:
        return
    rate = (clock(10**15 + 10**12) - clock(10**15)) / 10**12
    ppm, error_ppm = drift
    rounding_ppm = 1 + 1e6 * 4 / max(1, exchanges[-1].host_ns - exchanges[0].host_ns)
    assert abs(ppm - 1e6 * (rate - 1)) <= error_ppm + rounding_ppm


@given(st.floats(-50, 50), st.lists(DELAYS_NS, min_size=20, max_size=20), st.floats(0, 1))
@example(ppm_change=50.0, delays_ns=[(1, 1)] * 20, share=0.5)
def test_interval_contains_clock_with_varying_rate(ppm_change, delays_ns, share):
    """Half of each second runs at +ppm_change, the other half at −ppm_change."""
    def clock(our_ns):
        whole, rest = divmod(our_ns, S)
        return 7 * S + whole * S + rest + round(min(rest, S - rest) * ppm_change / 1e6)

    exchanges = [asked(number * S, clock, *delay) for number, delay in enumerate(delays_ns)]
    host_clock = HostClock(exchanges)
    our_ns = round(share * 19 * S)
    host_ns = clock(our_ns)
    assert abs(host_clock.our_ns(host_ns) - our_ns) <= host_clock.error_ns(host_ns) + 2


def test_exchange_with_least_delay_decides():
    clock = drifting(5 * S, 0)
    good = asked(1_000, clock, 30_000, 30_000)
    slow = asked(200_000, clock, 9 * MS, 1_000)
    host_clock = HostClock([slow, good])
    assert host_clock.error_ns(good.host_ns) == 30_001
    assert host_clock.our_ns(5 * S) == 0


def test_clock_that_was_set_contradicts_earlier_exchanges():
    before = [asked(number * S, drifting(0, 20), MS, MS) for number in range(3)]
    behind = [asked(number * S, drifting(30 * MS, 20), MS, MS) for number in range(3, 6)]
    assert HostClock(before).contradiction_ns == 0
    assert 25 * MS < HostClock(before + behind).contradiction_ns < 30 * MS


def test_error_grows_away_from_exchanges():
    host_clock = HostClock([asked(0, drifting(0, 0), MS, MS)])
    assert host_clock.error_ns(MS) == MS + 1
    assert host_clock.error_ns(MS + 10 * S) == 11 * MS + 1
    assert host_clock.drift_ppm is None
