"""Line charts as HTML with inline SVG.

The lines are SVG paths in a box of 1000 × 1000 units that the page stretches to the width of its column. Labels are
HTML beside the box, so text has the same size at 420 px and at 1240 px. Colours come from the page's style sheet, so a
chart needs no script and no second drawing for the dark scheme. The page's script adds the values under a pointer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

BOX = 1000
TONES = 8
#: Words for the dash of a line, as style sheet and titles name it.
DASHES = ("", "dotted", "dashed", "dash-dotted")
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Args:
        name: name in the legend and beside the pointer; "" for a line that neither names.
        x, y: coordinates of the points; a point with None interrupts the line.
        tone: index of the colour in the style sheet.
        dash: index in `DASHES`.
        thin: whether the line is drawn thin and pale.
        step: whether a value holds until the next point.
        marks: "round" or "square" for a mark at each point; "" for none.
        joined: whether a line joins the points.
    """

    name: str
    x: Values
    y: Values
    tone: int = 0
    dash: int = 0
    thin: bool = False
    step: bool = False
    marks: str = ""
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis.

    Args:
        low, high: smallest and largest value.
        ticks: value and text of each label.
        title: quantity and unit, also shown beside the pointer.
        log: whether the axis is logarithmic.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    title: str = ""
    log: bool = False

    def share(self, value: float) -> float:
        """Position of a value: 0 at `low`, 1 at `high`. A value outside lies just beyond its end, at −0.02 or 1.02."""
        low, high, at = (log10(max(each, 1e-12)) if self.log else each for each in (self.low, self.high, value))
        return min(max((at - low) / (high - low), -0.02), 1.02)


@dataclass(frozen=True, slots=True)
class Mark:
    """A straight line across a chart at one value, with a label."""

    value: float
    label: str
    vertical: bool = False


def time_axis(values: Iterable[float], title: str) -> Axis:
    """A linear axis from 0 to the largest value."""
    wide = linear_axis(values := list(values), title, from_zero=True)
    high = max(values, default=0.0) or wide.high
    return Axis(0.0, high, tuple(tick for tick in wide.ticks if tick[0] <= high), title)


def linear_axis(values: Iterable[float | None], title: str = "", *, from_zero: bool = False) -> Axis:
    """A linear axis with round labels that holds the values."""
    present = [value for value in values if value is not None] or [0.0, 1.0]
    low, high = min([*present, *([0.0] if from_zero else [])]), max(present)
    if high <= low:
        low, high = (0.0, 2 * high) if high > 0 else (low - 1, low + 1)
    step = _round_step((high - low) / 4)
    low, high = floor(low / step + 1e-9) * step, ceil(high / step - 1e-9) * step
    count = round((high - low) / step)
    return Axis(low, high, tuple((low + i * step, f"{round(low + i * step, 12):g}") for i in range(count + 1)), title)


def log_axis(values: Iterable[float | None], title: str = "") -> Axis:
    """A logarithmic axis; a linear axis where the values span less than a factor of 2."""
    positive = [value for value in values if value is not None and value > 0]
    if not positive or max(positive) < 2 * min(positive):
        return linear_axis(positive, title)
    low, high = 0.9 * min(positive), 1.1 * max(positive)
    digits = (1,) if high / low > 300 else (1, 2, 5) if high / low > 6 else (1, 1.5, 2, 3, 4, 5, 7)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    marks = [digit * 10.0**power for power in powers for digit in digits]
    return Axis(low, high, tuple((mark, f"{mark:g}") for mark in marks if low <= mark <= high), title, log=True)


def plot(lines: Sequence[Line], x: Axis, y: Axis, label: str, *, low: bool = False, marks: Sequence[Mark] = (),
         over: str = "", keys: bool = True) -> str:
    """The chart as HTML, with a legend where several lines have names.

    Args:
        label: what the chart shows, for screen readers.
        low: whether the chart is drawn with the small height of a row of a timeline.
        marks: limits and results.
        over: HTML that is placed over the chart.
        keys: whether the chart has a legend.
    """
    names, crossed = [line for line in lines if line.name], "".join(_mark_label(mark, x, y) for mark in marks)
    legend = "".join(_key(line) for line in names) if keys and len(names) > 1 else ""
    return (
        f'<div class="plot{" low" if low else ""}" tabindex="0" role="group" aria-label="{escape(label)}"'
        f' data-x="{_scale(x)}" data-y="{_scale(y)}">'
        f'{f"<p class=keys>{legend}</p>" if legend else ""}'
        f'<div class="ys">{"".join(_labels(y, "bottom"))}</div>'
        f'<div class="box"><svg viewBox="0 0 {BOX} {BOX}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="grid" d="{_grid(x, y)}"/>{"".join(_mark(mark, x, y) for mark in marks)}'
        f'{"".join(_line(line, x, y) for line in lines)}</svg>{crossed}{over}</div>'
        f'<div class="xs">{"".join(_labels(x, "left"))}</div>'
        f'<p class="reading" aria-live="polite">{escape(x.title)}</p></div>'
    )


def _key(line: Line) -> str:
    """A line's entry in the legend."""
    path = '<path d="M0 5H24"/>' if line.joined else ""
    mark = f'<path class="mark {line.marks}" d="M12 5h0"/>' if line.marks else ""
    return (f'<span class="key"><svg class="{_classes(line)}" viewBox="0 0 24 10" aria-hidden="true">{path}{mark}</svg>'
            f"{escape(line.name)}</span>")


def _classes(line: Line) -> str:
    return " ".join(filter(None, (f"t{line.tone % TONES}", f"d{line.dash % len(DASHES)}", "thin" if line.thin else "")))


def _scale(axis: Axis) -> str:
    return f"{axis.low:.6g} {axis.high:.6g} {'log' if axis.log else 'linear'} {escape(axis.title)}"


def _labels(axis: Axis, side: str) -> Iterator[str]:
    for value, text in axis.ticks:
        yield f'<span style="{side}:{100 * axis.share(value):.4g}%">{escape(text)}</span>'


def _grid(x: Axis, y: Axis) -> str:
    across = (f"M0 {_y(y, value)}H{BOX}" for value, _ in y.ticks)
    return "".join([*across, *(f"M{_number(BOX * x.share(value))} 0V{BOX}" for value, _ in x.ticks)])


def _mark(mark: Mark, x: Axis, y: Axis) -> str:
    place = f"M{_number(BOX * x.share(mark.value))} 0V{BOX}" if mark.vertical else f"M0 {_y(y, mark.value)}H{BOX}"
    return f'<path class="limit" d="{place}"/>'


def _mark_label(mark: Mark, x: Axis, y: Axis) -> str:
    share = x.share(mark.value) if mark.vertical else y.share(mark.value)
    sides = ("left", "right") if mark.vertical else ("bottom", "top")
    place = f"{sides[0]}:{100 * share:.4g}%" if share < 0.6 else f"{sides[1]}:{100 * (1 - share):.4g}%"
    return f'<span class="at" style="{"bottom:0;" if mark.vertical else ""}{place}">{escape(mark.label)}</span>'


def _line(line: Line, x: Axis, y: Axis) -> str:
    points = [
        None if at is None or value is None else (_number(BOX * x.share(at)), _y(y, value))
        for at, value in zip(line.x, line.y, strict=True)
    ]
    name = f' data-name="{escape(line.name)}"' if line.name else ""
    joined = f'<path d="{_path(points, line.step)}"{name}/>' if line.joined else ""
    dots = "".join(f"M{at} {height}h0" for at, height in filter(None, points)) if line.marks else ""
    marks = f'<path class="mark {line.marks}" d="{dots}"{"" if line.joined else name}/>' if dots else ""
    return f'<g class="{_classes(line)}">{joined}{marks}</g>'


def _path(points: Iterable[tuple[str, str] | None], step: bool) -> str:
    text, begins = "", True
    for point in points:
        if point is None:
            begins = True
            continue
        at, height = point
        text += f"M{at} {height}" if begins else f"H{at}V{height}" if step else f"L{at} {height}"
        begins = False
    return text


def _y(axis: Axis, value: float) -> str:
    return _number(BOX * (1 - axis.share(value)))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _round_step(least: float) -> float:
    power: float = 10.0 ** floor(log10(least))
    return next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= least * (1 - 1e-9))
