"""Did the load generator keep up? Where it did not, what it measured is itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.metrics import RunMetrics
from pytest_llmperf.model.exchange import LoadReport
from pytest_llmperf.results.measurement import Run

GAP_METRICS = ("itl", "largest_stall")


def load_generator_problems(
    run: Run, metrics: RunMetrics, named: Collection[str], settings: Settings
) -> Iterator[str]:
    """What of this run is the load generator's doing.

    Args:
        named: metrics that the test judges itself.
    """
    late = _lateness(run, metrics, named, settings)
    if late is not None:
        yield f"load generator saturated: {late}. {_state(run.load)}{_remedy(run.load)}"
    coalesced = metrics.value("coalesced_share")
    asks_for_gaps = any(name.startswith(GAP_METRICS) for name in named) and "coalesced_share" not in named
    if asks_for_gaps and coalesced is not None and coalesced > settings.coalesced_limit:
        yield (
            f"{coalesced:.0%} of the chunks came together with the one before (limit {settings.coalesced_limit:.0%}): "
            f"gaps between them say nothing about the server. {_state(run.load)}"
            "Either something starves the load generator of CPU, or what lies before the server sends in batches."
        )
    if run.clock_gap_ms > settings.clock_gap_limit_ms:
        yield (
            f"the load process did not run for {run.clock_gap_ms:.0f} ms (limit {settings.clock_gap_limit_ms:g} ms): "
            "the machine was suspended or starved."
        )


def _lateness(run: Run, metrics: RunMetrics, named: Collection[str], settings: Settings) -> str | None:
    """In what way it was late, the worst first; None where it was not."""
    delay_ms, limit_ms = metrics.value("send_delay_p99"), settings.send_delay_p99_limit_ms
    judged = not {"send_delay_p99", "send_delay_max"}.isdisjoint(named)
    if not judged and delay_ms is not None and delay_ms > limit_ms:
        return f"requests were sent {delay_ms:.1f} ms late (p99, limit {limit_ms:g} ms)"
    if run.load is None:
        return None
    empty_ms = (run.load.turnaround_p99_ns or 0) / 1e6
    if empty_ms > limit_ms:
        return f"slots of the closed loop stood empty for {empty_ms:.1f} ms (p99, limit {limit_ms:g} ms)"
    error_ms, error_limit_ms = run.load.stamp_error_p99_ns / 1e6, settings.stamp_error_p99_limit_ms
    if error_ms > error_limit_ms:
        return (
            f"stamps of arrivals may be {error_ms:.1f} ms late (p99, limit {error_limit_ms:g} ms), since the kernel "
            f"stamped {run.load.kernel_stamped or 0:.0%} of the reads only"
        )
    return None


def _state(load: LoadReport | None) -> str:
    """The numbers behind it, as a sentence."""
    if load is None:
        return ""
    where = f"on {len(load.cpus)} CPUs {'of their own' if load.own_cpus else 'that servers share'}"
    delay_ns = load.read_delay_p99_ns
    read = "" if delay_ns is None else f", read bytes {delay_ns / 1e6:.1f} ms after they came (p99)"
    return f"{load.processes} load process(es) {where}, busy {load.busy:.0%} of the time{read}. "


def _remedy(load: LoadReport | None) -> str:
    """More processes help only where one was busy; else somebody else took the CPU."""
    ways = ["send from another host", "lower the rate", "or raise the limit"]
    if load is None or not load.own_cpus:
        ways.insert(0, "give it a free core (load_cpus)")
    if load is not None and load.busy > 0.5:
        ways.insert(0, f"raise load_processes (now {load.processes})")
    text = ", ".join(ways)
    return text[0].upper() + text[1:] + "."
