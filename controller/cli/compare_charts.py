"""The pictures of a comparison, as SVG that needs nothing else and takes its colours from the page.

Coordinates are plain arithmetic: a picture of dots and whiskers needs no plotting library, which
the package would then depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from modelless.controller.cli.compare_svg import BOTTOM, TOP, axis, grid, line, nothing, svg, text
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
"""What the page's style lacks for them."""

_ROW, _LETTER = 25.0, 6.9
"""The height of a row and the width of a letter, in the pictures' own units."""

_MOST_LETTERS = 32


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
    """Violations against mean accuracy, per cent, with a line through what nothing else dominates.

    Args:
        points: name, violations and accuracy.
        width: of the picture.
        unavoidable: violations that nobody avoids, per cent, drawn as a line across.
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


# -- pieces ---------------------------------------------------------------------------------------


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
