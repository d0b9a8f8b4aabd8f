"""Which engine gets a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmperf.emulator.cluster.timeline import Timeline
from pytest_llmperf.emulator.core.counters import Gauges


def timeline(*in_flight: int, by_load: bool, waiting: int = 0, kv_usage: float = 0.0) -> Timeline:
    first = SimpleNamespace(gauges=Gauges(0, waiting, kv_usage))
    engines: list[Any] = [first, *[SimpleNamespace(gauges=Gauges(0, 0, 0.0)) for _ in in_flight[1:]]]
    made = Timeline(engines, by_load=by_load)
    made.in_flight = list(in_flight)
    return made


def test_sglang_chooses_engines_in_order() -> None:
    engines = timeline(3, 1, 2, by_load=False)
    assert [engines.route() for _ in range(4)] == [0, 1, 2, 0]


def test_vllm_chooses_fewest_requests_in_flight_and_of_equals_the_next() -> None:
    assert timeline(3, 1, 2, by_load=True).route() == 1
    equal = timeline(0, 0, 0, by_load=True)
    assert [equal.route() for _ in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize(("kv_usage", "chosen"), [(0.5, 0), (0.9, 1)])
def test_waiting_requests_weigh_more_on_engine_with_full_kv_cache(kv_usage: float, chosen: int) -> None:
    assert timeline(4, 5, by_load=True, waiting=2, kv_usage=kv_usage).route() == chosen
