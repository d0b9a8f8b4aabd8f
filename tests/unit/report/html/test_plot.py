"""Charts as HTML with SVG."""

import re

import pytest

from pytest_llmperf.report.html.plot import Axis, Line, Mark, linear_axis, log_axis, plot

UNIT = Axis(0, 10, ((0, "0"), (10, "10")), "ms")


@pytest.mark.parametrize(
    ("values", "ends", "labels"),
    [
        ((3, 97), (0, 100), ["0", "25", "50", "75", "100"]),
        ((0.1, 0.32), (0.1, 0.4), ["0.1", "0.2", "0.3", "0.4"]),
        ((5, 5), (0, 10), ["0", "2.5", "5", "7.5", "10"]),
        ((0, 0), (-1, 1), ["-1", "-0.5", "0", "0.5", "1"]),
        ((), (0, 1), ["0", "0.25", "0.5", "0.75", "1"]),
    ],
)
def test_linear_axis_has_round_labels_and_holds_all_values(values, ends, labels):
    axis = linear_axis(values)
    assert (axis.low, axis.high) == pytest.approx(ends)
    assert [text for _, text in axis.ticks] == labels


def test_log_axis_of_values_within_a_factor_of_two_is_linear():
    assert not log_axis([40, 70]).log
    assert not log_axis([]).log
    axis = log_axis([0, 10, 1000])
    assert axis.log
    assert [text for _, text in axis.ticks] == ["10", "20", "50", "100", "200", "500", "1000"]
    assert axis.share(100) == pytest.approx(0.5, abs=0.01)


def test_line_joins_known_values_and_breaks_at_missing_values():
    text = plot([Line("A", [0, 5, 7, 10], [0, 10, None, 5])], UNIT, UNIT, "a")
    assert 'd="M0 1000L500 0M1000 500"' in text


def test_step_line_holds_a_value_until_the_next_point():
    assert 'd="M0 1000H500V0"' in plot([Line("A", [0, 5], [0, 10], step=True)], UNIT, UNIT, "a")


def test_marks_without_a_line_have_a_name_for_readings():
    text = plot([Line("A", [5], [5], marks="square", joined=False)], UNIT, UNIT, "a")
    assert '<path class="mark square" d="M500 500h0" data-name="A"/>' in text


def test_limit_is_drawn_and_labelled_within_the_chart():
    text = plot([], UNIT, UNIT, "a", marks=[Mark(2.5, "limit 2.5 ms"), Mark(9, "proven", vertical=True)])
    assert re.findall(r'class="limit" d="([^"]*)"', text) == ["M0 750H1000", "M900 0V1000"]
    assert '<span class="at" style="bottom:25%">limit 2.5 ms</span>' in text
    assert '<span class="at" style="bottom:0;right:10%">proven</span>' in text


def test_names_in_charts_are_escaped():
    text = plot([Line('<b> "x"', [1], [1]), Line("y", [1], [1])], UNIT, UNIT, '"><img>')
    assert "<b>" not in text
    assert "<img" not in text
    assert "&lt;b&gt; &quot;x&quot;" in text
