"""The spread of TTFT in milliseconds: largest value − smallest value."""

from pytest_llmperf.extending import AddedMetric, Direction, Unit


def ttft_spread(records, counters):
    """Spread of TTFT in ms; None if no request was answered."""
    ttft_ns = [record.arrivals_ns[0] - record.intended_ns for record in records if record.ok and record.arrivals_ns]
    return (max(ttft_ns) - min(ttft_ns)) / 1e6 if ttft_ns else None


TTFT_SPREAD = AddedMetric(
    api=1, name="ttft_spread", unit=Unit.MS, direction=Direction.LOWER, take=ttft_spread,
    formula="largest TTFT − smallest TTFT of the served requests",
)
