"""The pictures of a comparison, as SVG that needs nothing else and takes its colours from the page.

Coordinates are plain arithmetic: a picture of dots and whiskers needs no plotting library, which
the package would then depend on.
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
.chart .accuracy { stroke: var(--orange); stroke-width: 1.6; fill: none; }
.pair, .panels { display: grid; gap: 6px 26px; }
.pair { grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); }
.panels { grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); }
.panels .plot { margin: 4px 0; }
"""
"""What the page's style lacks for them."""

_ROW, _TOP, _BOTTOM = 25.0, 24.0, 38.0
_LETTER = 6.9
"""Heights and the width of a letter, in the pictures' own units."""

_MOST_LETTERS = 32

_MOST_POINTS = 120
"""Of a line: more would not be seen in a panel."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A value with its interval, under a name."""

    name: str
    mean: float
    low: float | None
    high: float | None


def _brief(name: str) -> str:
    """A name as there is room for it beside a picture; tables and screen readers have it whole.

    Its end is kept: names such as ``module:Class`` share their beginning.
    """
    return name if len(name) <= _MOST_LETTERS else f"…{name[1 - _MOST_LETTERS :]}"


def interval_chart(
    marks: Sequence[Mark],
    title: str,
    *,
    width: float = 1000.0,
    bound: float | None = None,
    from_zero: bool = False,
    number: Callable[[float], str] = "{:.4g}".format,
) -> str:
    """A row a name: a dot, and whiskers over its 95 % interval. The first is in another colour.

    Args:
        marks: the rows.
        title: of the values, for those who cannot see the picture too.
        width: of the picture.
        bound: drawn as a line across.
        from_zero: the axis begins there, and whiskers of what cannot be negative end there.
        number: as text.
    """
    if not marks:
        return _nothing(title, width)
    if from_zero:
        marks = [_above_zero(mark) for mark in marks]
    names = [_brief(mark.name) for mark in marks]
    reached = [v for m in marks for v in (m.mean, m.low, m.high) if v is not None]
    reached += [bound] if bound is not None else []
    reached += [0.0] if from_zero else []
    left = 14.0 + _LETTER * max(map(len, names))
    ticks, place = _axis(min(reached), max(reached), left, width - 62.0)
    height = _TOP + _ROW * len(marks) + _BOTTOM
    floor = height - _BOTTOM
    parts = [_grid(place(tick), _TOP, floor, number(tick)) for tick in ticks]
    if bound is not None:
        x = place(bound)
        parts.append(_line("bound", x, _TOP - 6.0, x, floor))
        parts.append(_text(x, _TOP - 10.0, f"bound {number(bound)}", "bound-name", "end"))
    for row, mark in enumerate(marks):
        y = _TOP + _ROW * (row + 0.5)
        parts.append(f'<g class="{"first" if row == 0 else "other"}">')
        parts.append(_text(left - 10.0, y + 4.0, names[row], anchor="end"))
        end = place(mark.mean)
        if mark.low is not None and mark.high is not None:
            parts.append(_line("whisker", place(mark.low), y, place(mark.high), y))
            end = max(end, place(mark.high))
        parts.append(f'<circle class="dot" cx="{place(mark.mean):.1f}" cy="{y:.1f}" r="5"/>')
        parts.append(_text(end + 10.0, y + 4.0, number(mark.mean), kind="muted"))
        parts.append("</g>")
    parts.append(_text(left, height - 4.0, title, kind="muted"))
    said = "; ".join(f"{mark.name} {_spoken(mark, number)}" for mark in marks)
    said += f"; clairvoyant bound {number(bound)}" if bound is not None else ""
    return _svg(parts, width, height, title, said)


def frontier_chart(points: Sequence[tuple[str, float, float]], *, width: float = 490.0) -> str:
    """Violations against mean accuracy, per cent, with a line through what nothing else dominates.

    Args:
        points: name, violations and accuracy.
        width: of the picture.
    """
    title = "Violations, % (less is better) against mean accuracy, % (more is better)"
    if not points:
        return _nothing(title, width)
    height, left, right = 330.0, 44.0, width - 14.0
    floor = height - _BOTTOM
    across, x_of = _axis(min(p[1] for p in points), max(p[1] for p in points), left + 8, right - 90)
    up, y_of = _axis(min(p[2] for p in points), max(p[2] for p in points), floor - 8, _TOP)
    parts = [_grid(x_of(tick), _TOP - 8.0, floor, f"{tick:g}") for tick in across]
    for tick in up:
        parts.append(_line("grid", left, y_of(tick), right, y_of(tick)))
        parts.append(_text(left - 6.0, y_of(tick) + 4.0, f"{tick:g}", "muted", "end"))
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
        parts.append(_text(start + (wide if is_left else 0), level, name, "", _anchor(is_left)))
        parts.append("</g>")
    parts.append(_text(left, height - 4.0, "violations, %", kind="muted"))
    parts.append(_text(2.0, 11.0, "mean accuracy, %", kind="muted"))
    said = "; ".join(f"{n}: violations {x:.2f} %, accuracy {y:.2f} %" for n, x, y in points)
    return _svg(parts, width, height, title, said)


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
        return _nothing(title, width)
    height, left, right = 150.0, 42.0, width - 32.0
    floor, span_s = height - 26.0, step_s * len(queries)
    low, high = accuracy_range

    def x_of(place: float) -> float:
        return left + (right - left) * place / len(queries)

    def y_of(share: float) -> float:
        return floor - (floor - _TOP) * share

    tops = [y_of(count / step_s / most_per_s) if most_per_s else floor for count in queries]
    steps = [f"{x_of(n + d):.1f},{top:.1f}" for n, top in enumerate(tops) for d in (0, 1)]
    area = " ".join([f"{left:.1f},{floor:.1f}", *steps, f"{right:.1f},{floor:.1f}"])
    attained = [g / q if q else None for g, q in zip(series["good"], queries, strict=True)]
    scaled = [
        None if mean is None else (mean - low) / (high - low) if high > low else 0.5
        for mean in series["mean_accuracy"]
    ]
    parts = [_text(left, 13.0, name), f'<polygon class="load" points="{area}"/>']
    for share in (0.0, 0.5, 1.0):
        y = y_of(share)
        parts.append(_line("grid", left, y, right, y))
        parts.append(_text(left - 5.0, y + 4.0, f"{share:.0%}", "muted", "end"))
        if high > low:
            parts.append(_text(right + 5.0, y + 4.0, f"{low + share * (high - low):.0f}", "muted"))
    parts += _polylines("attained", attained, x_of, y_of)
    parts += _polylines("accuracy", scaled, x_of, y_of)
    parts.append(_text(left, height - 8.0, "0", kind="muted"))
    parts.append(_text(right, height - 8.0, f"{span_s:g} s", "muted", "end"))
    total = sum(queries)
    said = (
        f"{total} queries in {span_s:g} s, attained {sum(series['good']) / max(1, total):.1%}, "
        f"lowest {min((a for a in attained if a is not None), default=0.0):.1%} in a step"
    )
    return _svg(parts, width, height, title, said)


def coarser(series: Mapping[str, Any], most: int) -> dict[str, Any]:
    """A series with steps so long that at most ``most`` are left."""
    count = len(series["queries"])
    together = max(1, math.ceil(count / most))
    merged: dict[str, Any] = {"step_s": series["step_s"] * together, "mean_accuracy": []}
    for name in ("queries", "good", "answered"):
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


# -- pieces -----------------------------------------------------------------------------------


def _axis(
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


def _free(y: float, start: float, end: float, taken: Sequence[tuple[float, float, float]]) -> float:
    """The level nearest to ``y``, from there downwards, where a name hides no other."""
    while any(abs(y - level) < 13.0 and start < e and s < end for level, s, e in taken):
        y += 4.0
    return y


def _grid(x: float, top: float, floor: float, name: str) -> str:
    return _line("grid", x, top, x, floor) + _text(x, floor + 15.0, name, "muted", "middle")


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    looks = f' class="{kind}"' if kind else ""
    return f'<text{looks} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _anchor(is_left: bool) -> str:
    return "end" if is_left else "start"


def _above_zero(mark: Mark) -> Mark:
    return replace(mark, low=max(0.0, mark.low)) if mark.low is not None else mark


def _spoken(mark: Mark, number: Callable[[float], str]) -> str:
    if mark.low is None or mark.high is None:
        return number(mark.mean)
    return f"{number(mark.mean)} ({number(mark.low)} to {number(mark.high)})"


def _nothing(title: str, width: float) -> str:
    return _svg([_text(8.0, 24.0, "nothing to show", "muted")], width, 40.0, title, "")


def _svg(parts: Iterable[str], width: float, height: float, title: str, said: str) -> str:
    label = escape(f"{title}. {said}" if said else title)
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {width:g} {height:g}" aria-label="{label}">{"".join(parts)}</svg>'
    )
