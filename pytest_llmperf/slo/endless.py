"""A failed request is an answer without an end: what it would have brought to a latency is infinite."""

from __future__ import annotations

from pytest_llmperf.metrics.families import FAMILIES
from pytest_llmperf.metrics.run import RunMetrics


def pooled_ms(run: RunMetrics, family: str) -> list[float]:
    """The sample with failed requests as infinity."""
    return [*run.samples(family), *[float("inf")] * sum(lost(run, family).values())]


def lost(run: RunMetrics, family: str) -> dict[int, int]:
    """Observations that each failed request, by position, would have brought: as many as it had asked for, if gaps
    come at the same rate per token as in the served requests. At least one."""
    by_request = run.by_request(family) or ()
    failed = [position for position, values in enumerate(by_request) if values is None]
    if FAMILIES[family].per_request:
        return dict.fromkeys(failed, 1)
    served = [(len(values), run.records[at].asked_output_tokens) for at, values in enumerate(by_request)
              if values is not None]
    asked = sum(max(0, tokens - 1) for _, tokens in served)
    per_token = sum(gaps for gaps, _ in served) / asked if asked else 1.0
    return {at: max(1, round(per_token * (run.records[at].asked_output_tokens - 1))) for at in failed}
