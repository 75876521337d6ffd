"""The charts of a comparison, as SVG that takes its colours from the page.

Coordinates are plain arithmetic, so the package needs no plotting library for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Final

from modelless.profiler.report.tradeoffs import frontier

STYLE: Final = """
main { max-width: 1180px; }
.words { display: block; white-space: normal; min-width: 24ch; }
.chart text { font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
.chart .muted { fill: var(--muted); font-size: 11.5px; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .frontier { stroke: var(--muted); stroke-dasharray: 3 4; fill: none; }
.chart .whisker { stroke: var(--teal); stroke-width: 2; }
.chart .dot { fill: var(--teal); stroke: var(--paper); stroke-width: 1.5; }
.chart .first .dot { fill: var(--orange); } .chart .first .whisker { stroke: var(--orange); }
.chart .bound { stroke: var(--red); stroke-width: 1.5; stroke-dasharray: 6 4; }
.chart .bound-name { fill: var(--red); font-size: 11.5px; }
.chart .load { fill: var(--line); }
.chart .attained { stroke: var(--teal); stroke-width: 1.6; fill: none; }
.chart .rent { stroke: var(--muted); stroke-width: 1.4; stroke-dasharray: 5 4; fill: none; }
.chart .accuracy { stroke: var(--orange); stroke-width: 1.6; fill: none; }
.pair, .panels { display: grid; gap: 6px 26px; }
.pair { grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); }
.panels { grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); }
.panels .plot { margin: 4px 0; }
"""
"""Added to the page's style."""


TOP, BOTTOM = 24.0, 38.0
"""Room above and below what is drawn, in the chart's own units."""

_ROW, _LETTER = 25.0, 6.9
"""The height of a row and the width of a letter, in the chart's own units."""

_MOST_LETTERS = 32
_MOST_POINTS = 120
"""Of a line: a panel cannot show more."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A value with its interval, under a name."""

    name: str
    mean: float
    low: float | None
    high: float | None


def interval_chart(
    marks: Sequence[Mark],
    title: str,
    *,
    width: float = 1000.0,
    bound: float | None = None,
    from_zero: bool = False,
    number: Callable[[float], str] = "{:.4g}".format,
) -> str:
    """A row for each mark: a dot, and whiskers over its 95 % interval. The first is coloured.

    Args:
        marks: the rows.
        title: of the values; screen readers read it aloud.
        width: of the picture.
        bound: drawn as a line across.
        from_zero: the axis and the whiskers begin at 0.
        number: formats a value.
    """
    if not marks:
        return nothing(title, width)
    if from_zero:
        marks = [_above_zero(mark) for mark in marks]
    names = [_brief(mark.name) for mark in marks]
    reached = [v for m in marks for v in (m.mean, m.low, m.high) if v is not None]
    reached += [bound] if bound is not None else []
    reached += [0.0] if from_zero else []
    left = 14.0 + _LETTER * max(map(len, names))
    ticks, place = axis(min(reached), max(reached), left, width - 62.0)
    height = TOP + _ROW * len(marks) + BOTTOM
    floor = height - BOTTOM
    parts = [grid(place(tick), TOP, floor, number(tick)) for tick in ticks]
    if bound is not None:
        x = place(bound)
        parts.append(line("bound", x, TOP - 6.0, x, floor))
        parts.append(text(x, TOP - 10.0, f"bound {number(bound)}", "bound-name", "end"))
    for row, mark in enumerate(marks):
        y = TOP + _ROW * (row + 0.5)
        parts.append(f'<g class="{"first" if row == 0 else "other"}">')
        parts.append(text(left - 10.0, y + 4.0, names[row], anchor="end"))
        end = place(mark.mean)
        if mark.low is not None and mark.high is not None:
            parts.append(line("whisker", place(mark.low), y, place(mark.high), y))
            end = max(end, place(mark.high))
        parts.append(f'<circle class="dot" cx="{place(mark.mean):.1f}" cy="{y:.1f}" r="5"/>')
        parts.append(text(end + 10.0, y + 4.0, number(mark.mean), kind="muted"))
        parts.append("</g>")
    parts.append(text(left, height - 4.0, title, kind="muted"))
    said = "; ".join(f"{mark.name} {_spoken(mark, number)}" for mark in marks)
    said += f"; clairvoyant bound {number(bound)}" if bound is not None else ""
    return svg(parts, width, height, title, said)


def frontier_chart(
    points: Sequence[tuple[str, float, float]],
    *,
    width: float = 490.0,
    unavoidable: float | None = None,
) -> str:
    """Violations against mean accuracy, per cent, with a line through the undominated points.

    Args:
        points: name, violations and accuracy.
        width: of the picture.
        unavoidable: violations that no policy avoids, per cent, drawn as a line across.
    """
    title = "Violations, % (less is better) against mean accuracy, % (more is better)"
    if not points:
        return nothing(title, width)
    height, left, right = 330.0, 44.0, width - 14.0
    floor = height - BOTTOM
    broken = [p[1] for p in points] + ([] if unavoidable is None else [unavoidable])
    across, x_of = axis(min(broken), max(broken), left + 8, right - 90)
    up, y_of = axis(min(p[2] for p in points), max(p[2] for p in points), floor - 8, TOP)
    parts = [grid(x_of(tick), TOP - 8.0, floor, f"{tick:g}") for tick in across]
    for tick in up:
        parts.append(line("grid", left, y_of(tick), right, y_of(tick)))
        parts.append(text(left - 6.0, y_of(tick) + 4.0, f"{tick:g}", "muted", "end"))
    if unavoidable is not None:
        x = x_of(unavoidable)
        parts.append(line("bound", x, TOP - 8.0, x, floor))
        parts.append(text(x + 4.0, floor - 6.0, f"unavoidable {unavoidable:.2f}", "bound-name"))
    best = frontier(points, lambda point: (point[1], point[2]))
    corners = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for _, x, y in best)
    parts.append(f'<polyline class="frontier" points="{corners}"/>')
    taken: list[tuple[float, float, float]] = []
    for row, (whole_name, x, y) in enumerate(points):
        name = _brief(whole_name)
        at_x, at_y = x_of(x), y_of(y)
        wide = _LETTER * len(name)
        is_left = at_x + 10.0 + wide > width
        start = at_x - 10.0 - wide if is_left else at_x + 10.0
        level = _free(at_y + 4.0, start, start + wide, taken)
        taken.append((level, start, start + wide))
        parts.append(f'<g class="{"first" if row == 0 else "other"}">')
        parts.append(f'<circle class="dot" cx="{at_x:.1f}" cy="{at_y:.1f}" r="5"/>')
        parts.append(text(start + (wide if is_left else 0), level, name, "", _anchor(is_left)))
        parts.append("</g>")
    parts.append(text(left, height - 4.0, "violations, %", kind="muted"))
    parts.append(text(2.0, 11.0, "mean accuracy, %", kind="muted"))
    said = "; ".join(f"{n}: violations {x:.2f} %, accuracy {y:.2f} %" for n, x, y in points)
    said += f"; unavoidable {unavoidable:.2f} %" if unavoidable is not None else ""
    return svg(parts, width, height, title, said)


def course_chart(
    name: str,
    series: Mapping[str, Any],
    accuracy_range: tuple[float, float],
    most_per_s: float,
    *,
    width: float = 330.0,
) -> str:
    """Attainment, mean accuracy and load over time of one run.

    Args:
        name: of the contender.
        series: as ``Series.figures`` tells it.
        accuracy_range: of the panels that stand side by side, per cent.
        most_per_s: their highest load.
        width: of the picture.
    """
    series = coarser(series, _MOST_POINTS)
    step_s, queries = series["step_s"], series["queries"]
    title = f"{name}: attainment, mean accuracy and load over time"
    if not queries:
        return nothing(title, width)
    height, left, right = 150.0, 42.0, width - 32.0
    floor, span_s = height - 26.0, step_s * len(queries)
    low, high = accuracy_range

    def x_of(place: float) -> float:
        return left + (right - left) * place / len(queries)

    def y_of(share: float) -> float:
        return floor - (floor - TOP) * share

    tops = [y_of(count / step_s / most_per_s) if most_per_s else floor for count in queries]
    steps = [f"{x_of(n + d):.1f},{top:.1f}" for n, top in enumerate(tops) for d in (0, 1)]
    area = " ".join([f"{left:.1f},{floor:.1f}", *steps, f"{right:.1f},{floor:.1f}"])
    attained = [g / q if q else None for g, q in zip(series["good"], queries, strict=True)]
    scaled = [
        None if mean is None else (mean - low) / (high - low) if high > low else 0.5
        for mean in series["mean_accuracy"]
    ]
    parts = [text(left, 13.0, name), f'<polygon class="load" points="{area}"/>']
    for share in (0.0, 0.5, 1.0):
        y = y_of(share)
        parts.append(line("grid", left, y, right, y))
        parts.append(text(left - 5.0, y + 4.0, f"{share:.0%}", "muted", "end"))
        if high > low:
            parts.append(text(right + 5.0, y + 4.0, f"{low + share * (high - low):.0f}", "muted"))
    parts += _polylines("attained", attained, x_of, y_of)
    parts += _polylines("accuracy", scaled, x_of, y_of)
    parts.append(text(left, height - 8.0, "0", kind="muted"))
    parts.append(text(right, height - 8.0, f"{span_s:g} s", "muted", "end"))
    total = sum(queries)
    said = (
        f"{total} queries in {span_s:g} s, attained {sum(series['good']) / max(1, total):.1%}, "
        f"lowest {min((a for a in attained if a is not None), default=0.0):.1%} in a step"
    )
    return svg(parts, width, height, title, said)


def cost_chart(
    name: str, series: Mapping[str, Any], dearest: float, *, width: float = 330.0
) -> str:
    """What one run cost over time: device time of what was answered, and rent of all devices.

    Args:
        name: of the contender.
        series: as ``Series.figures`` tells it.
        dearest: highest of the panels that stand side by side, USD an hour.
        width: of the picture.
    """
    series = coarser(series, _MOST_POINTS)
    title = f"{name}: cost over time, USD an hour"
    busy, rent = (_usd_per_hour(series, kind) for kind in ("cost_usd", "rent_usd"))
    if not busy:
        return nothing(title, width)
    height, left, right = 96.0, 42.0, width - 32.0
    floor, top = height - 14.0, 12.0

    def x_of(place: float) -> float:
        return left + (right - left) * place / len(busy)

    def y_of(usd_per_hour: float) -> float:
        return floor - (floor - top) * (usd_per_hour / dearest if dearest else 0.0)

    parts = []
    for mark in (0.0, dearest):
        parts.append(line("grid", left, y_of(mark), right, y_of(mark)))
        parts.append(text(left - 5.0, y_of(mark) + 4.0, f"{mark:.2g}", "muted", "end"))
    parts += _polylines("rent", rent, x_of, y_of)
    parts += _polylines("attained", busy, x_of, y_of)
    hours = series["step_s"] * len(busy) / 3600.0
    said = (
        f"on average {sum(series['cost_usd']) / hours:.3g} for device time of what was answered, "
        f"at most {max(busy):.3g} in a step; {sum(series['rent_usd']) / hours:.3g} for rent"
    )
    return svg(parts, width, height, title, said)


def dearest_usd_per_hour(series: Mapping[str, Any]) -> float:
    """The highest cost that a run's picture shows."""
    series = coarser(series, _MOST_POINTS)
    costs = [*_usd_per_hour(series, "cost_usd"), *_usd_per_hour(series, "rent_usd")]
    return max(costs, default=0.0)


def coarser(series: Mapping[str, Any], most: int) -> dict[str, Any]:
    """A series with steps so long that at most ``most`` are left."""
    count = len(series["queries"])
    together = max(1, math.ceil(count / most))
    merged: dict[str, Any] = {"step_s": series["step_s"] * together, "mean_accuracy": []}
    for name in ("queries", "good", "answered", "cost_usd", "rent_usd"):
        values = series[name]
        merged[name] = [sum(values[n : n + together]) for n in range(0, count, together)]
    for n in range(0, count, together):
        known = [
            (mean, weight)
            for mean, weight in zip(
                series["mean_accuracy"][n : n + together],
                series["answered"][n : n + together],
                strict=True,
            )
            if mean is not None
        ]
        weight = sum(each for _, each in known)
        total = sum(mean * each for mean, each in known)
        merged["mean_accuracy"].append(total / weight if weight else None)
    return merged


def _brief(name: str) -> str:
    """A name as there is room for it beside a picture; tables and screen readers have it whole.

    Its end is kept: names such as ``module:Class`` share their beginning.
    """
    return name if len(name) <= _MOST_LETTERS else f"…{name[1 - _MOST_LETTERS :]}"


def _free(y: float, start: float, end: float, taken: Sequence[tuple[float, float, float]]) -> float:
    """The level nearest to ``y``, from there downwards, where a name hides no other."""
    while any(abs(y - level) < 13.0 and start < e and s < end for level, s, e in taken):
        y += 4.0
    return y


def _anchor(is_left: bool) -> str:
    return "end" if is_left else "start"


def _above_zero(mark: Mark) -> Mark:
    return replace(mark, low=max(0.0, mark.low)) if mark.low is not None else mark


def _spoken(mark: Mark, number: Callable[[float], str]) -> str:
    if mark.low is None or mark.high is None:
        return number(mark.mean)
    return f"{number(mark.mean)} ({number(mark.low)} to {number(mark.high)})"


def _usd_per_hour(series: Mapping[str, Any], kind: str) -> list[float]:
    return [usd * 3600.0 / series["step_s"] for usd in series[kind]]


def _polylines(
    kind: str,
    values: Sequence[float | None],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
) -> list[str]:
    """A line over the middles of steps, with gaps where nothing is known."""
    found = []
    for is_known, group in itertools.groupby(enumerate(values), lambda pair: pair[1] is not None):
        if is_known:
            points = [(x_of(n + 0.5), y_of(value)) for n, value in group if value is not None]
            if len(points) == 1:  # a line of one point would not be seen
                points = [(points[0][0] - 1.0, points[0][1]), (points[0][0] + 1.0, points[0][1])]
            corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            found.append(f'<polyline class="{kind}" points="{corners}"/>')
    return found


def axis(
    low: float, high: float, start: float, end: float
) -> tuple[list[float], Callable[[float], float]]:
    """Round ticks over a range, and where its values are between two coordinates."""
    spread = high - low or abs(high) or 1.0
    rough = spread / 4.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * round_ for round_ in (1, 2, 2.5, 5, 10) if power * round_ >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = last if last > first else first + 1
    bottom, top = first * step, last * step

    def place(value: float) -> float:
        return start + (end - start) * (value - bottom) / (top - bottom)

    return [number * step for number in range(first, last + 1)], place


def grid(x: float, top: float, floor: float, name: str) -> str:
    """A vertical line of the grid with its name below."""
    return line("grid", x, top, x, floor) + text(x, floor + 15.0, name, "muted", "middle")


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A line; the page styles its class ``kind``."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words at x, which is their start, middle or end, by ``anchor``."""
    looks = f' class="{kind}"' if kind else ""
    return f'<text{looks} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def nothing(title: str, width: float) -> str:
    """An empty chart that says so."""
    return svg([text(8.0, 24.0, "nothing to show", "muted")], width, 40.0, title, "")


def svg(parts: Iterable[str], width: float, height: float, title: str, said: str) -> str:
    """A chart of parts; screen readers read ``said`` after its title."""
    label = escape(f"{title}. {said}" if said else title)
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {width:g} {height:g}" aria-label="{label}">{"".join(parts)}</svg>'
    )
