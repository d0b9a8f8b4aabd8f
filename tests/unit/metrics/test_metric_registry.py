"""Every metric there is."""

import pytest

from pytest_llmperf.errors import SloError
from pytest_llmperf.metrics import Direction, Source, Unit, all_metrics, find


def test_metric_is_found_by_name_and_has_formula():
    for name, metric in all_metrics().items():
        assert find(name) == metric
        assert metric.name == name
        assert metric.formula
        assert metric.needs
        assert metric.formula_id


def test_formula_ids_are_unique():
    ids = [metric.formula_id for metric in all_metrics().values()]
    assert len(ids) == len(set(ids))


def test_median_is_another_name_of_p50():
    assert find("ttft_median") is find("ttft_p50")


def test_a_latency_without_statistic_lists_the_statistics():
    with pytest.raises(SloError, match="itl_mean, itl_p50, itl_p75, itl_p90, itl_p95, itl_p99, itl_max"):
        find("itl")


@pytest.mark.parametrize("name", [None, 50, ["ttft_p50"], {"ttft_p50": 1}])
def test_metric_name_of_other_type_is_refused(name):
    with pytest.raises(SloError, match="a metric must be a text such as 'ttft_p50', got "):
        find(name)


def test_unrelated_metric_name_is_refused_with_list_of_all_metrics():
    with pytest.raises(SloError, match="there are: ttft_mean"):
        find("zzzzzz")


@pytest.mark.parametrize(("name", "unit", "direction", "source"), [
    ("ttft_p99", Unit.MS, Direction.LOWER, Source.CLIENT),
    ("request_throughput", Unit.REQUESTS_PER_S, Direction.HIGHER, Source.CLIENT),
    ("error_rate", Unit.SHARE, Direction.LOWER, Source.CLIENT),
    ("preemptions", Unit.COUNT, Direction.LOWER, Source.SERVER),
    ("kv_usage_peak", Unit.SHARE, Direction.NEITHER, Source.SERVER),
    ("spec_acceptance_rate_pos7", Unit.SHARE, Direction.HIGHER, Source.SERVER),
])
def test_metric_has_expected_unit_direction_and_source(name, unit, direction, source):
    metric = find(name)
    assert (metric.unit, metric.direction, metric.source) == (unit, direction, source)


@pytest.mark.parametrize(("unit", "value", "text"), [
    (Unit.MS, 471.04, "471 ms"), (Unit.SHARE, 0.963, "96.3 %"), (Unit.COUNT, 3.0, "3"),
    (Unit.TOKENS_PER_S, 12345.6, "12346 tokens/s"), (Unit.MS, 0.0123456, "0.01235 ms"),
])
def test_value_is_shown_with_unit(unit, value, text):
    assert unit.show(value) == text


def test_intervals_name_the_unit_once_and_infinity_in_words():
    assert Unit.MS.show_range(431, 489) == "431–489 ms"
    assert Unit.MS.show_range(431, float("inf")) == "431 ms or more, no upper limit"
