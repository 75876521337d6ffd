"""The pictures of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np

from modelless.common.drawing import (
    BLUE,
    INK,
    LINE,
    MUTED,
    NAME_PT,
    ORANGE,
    RED,
    TEAL,
    WIDTH_IN,
    Chart,
    name_column,
)
from modelless.profiler.report.tradeoffs import frontier

STYLE: Final = """
main { max-width: 1180px; }
.words { display: block; white-space: normal; min-width: 24ch; }
.pair { display: grid; gap: 6px 26px; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); }
"""
"""CSS of a comparison's page, besides that of all pages."""

HALF_WIDTH_IN: Final = 5.4

_ROW_IN = 0.27
_MOST_LETTERS: Final = 32
_MOST_POINTS: Final = 120
"""Of a line over time: a panel cannot show more."""

_COLUMNS: Final = 3
_COURSE_IN, _COST_IN = 1.5, 0.9


@dataclass(frozen=True, slots=True)
class Mark:
    """A contender's mean with its interval."""

    name: str
    mean: float
    low: float | None
    high: float | None


def interval_chart(
    marks: Sequence[Mark],
    title: str,
    *,
    width_in: float = WIDTH_IN,
    bound: float | None = None,
    from_zero: bool = False,
    number: Callable[[float], str] = "{:.4g}".format,
) -> Chart:
    """A row for each contender: a dot, and a line over its 95 % interval.

    The first contender is orange, the others are teal.

    Args:
        width_in: width of the picture, inches.
        bound: of the values; drawn as a line across.
        from_zero: the axis begins at 0.
    """

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for row, mark in enumerate(marks):
            colour, end = TEAL if row else ORANGE, mark.mean
            if mark.low is not None and mark.high is not None:
                axes.plot([mark.low, mark.high], [row, row], color=colour)
                end = max(mark.mean, mark.high)
            axes.plot([mark.mean], [row], "o", color=colour)
            axes.annotate(
                number(mark.mean),
                (end, row),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=NAME_PT,
                color=MUTED,
            )
        if bound is not None:
            _draw_bound(axes, bound, f"bound {number(bound)}")
        axes.set_yticks(range(len(marks)), [_brief(mark.name) for mark in marks])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(marks) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12)
        if from_zero:
            axes.set_xlim(left=0.0)
        axes.set_xlabel(title)

    said = [f"{mark.name} {_spoken(mark, number)}" for mark in marks]
    said += [f"clairvoyant bound {number(bound)}"] if bound is not None else []
    return _chart(draw, (width_in, 0.9 + _ROW_IN * len(marks)), title, said if marks else [])


def margin_chart(margins: Mapping[str, Sequence[float]], near_points: float) -> Chart:
    """Margins over worlds, sorted, a curve for each of up to three contenders; the first is orange.

    The axis is linear up to a point either side of zero, and logarithmic beyond.

    Args:
        near_points: a band either side of zero is shaded.
    """

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.axhspan(-near_points, near_points, color=LINE, linewidth=0)
        axes.axhline(0.0, color=MUTED, linewidth=1)
        for place, (name, values) in reversed(list(enumerate(margins.items()))):
            shares = 100.0 * (np.arange(len(values)) + 0.5) / max(len(values), 1)
            colour, width = (ORANGE, TEAL, BLUE)[place], 1.2 if place else 2.0
            axes.plot(shares, sorted(values), color=colour, linewidth=width, label=_brief(name))
        axes.set_yscale("symlog", linthresh=1.0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlim(0.0, 100.0)
        axes.set_xlabel("worlds, %, the worst first")
        axes.set_ylabel("margin over the best other, points")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="upper left")

    said = [
        f"{name}: median {np.median(values):+.2f}, worst {min(values):+.2f} points"
        for name, values in margins.items()
        if len(values)
    ]
    title = "Margins over the best other, sorted over worlds"
    return _chart(draw, (HALF_WIDTH_IN, 4.2), title, said)


def frontier_chart(
    points: Sequence[tuple[str, float, float]], *, unavoidable: float | None = None
) -> Chart:
    """Violations against mean accuracy, with a line through the points that nothing dominates.

    Args:
        points: name, violations and accuracy, per cent.
        unavoidable: violations that no policy avoids, per cent; drawn as a line across.
    """

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        best = frontier(points, lambda point: (point[1], point[2]))
        axes.plot([x for _, x, _ in best], [y for _, _, y in best], ":", color=MUTED, linewidth=1)
        colours = [TEAL if row else ORANGE for row in range(len(points))]
        axes.scatter([x for _, x, _ in points], [y for _, _, y in points], c=colours, zorder=3)
        if unavoidable is not None:
            _draw_bound(axes, unavoidable, f"unavoidable {unavoidable:.2f}")
        axes.margins(0.08)
        axes.set_xlabel("violations, % (less is better)")
        axes.set_ylabel("mean accuracy, % (more is better)")
        figure.draw_without_rendering()  # settles the layout, so that it is known where points lie
        places = [(x, y) for _, x, y in points]
        name_column(axes, places, [_brief(name) for name, _, _ in points], colours)

    said = [f"{name}: violations {x:.2f} %, accuracy {y:.2f} %" for name, x, y in points]
    said += [f"unavoidable {unavoidable:.2f} %"] if unavoidable is not None else []
    height_in = max(3.6, 1.0 + 0.17 * len(points))
    title = "Violations against mean accuracy"
    return _chart(draw, (HALF_WIDTH_IN, height_in), title, said if points else [])


def courses_chart(courses: Mapping[str, Mapping[str, Any]]) -> Chart:
    """The courses of runs over time: two panels for each contender, all with the same axes.

    The first panel has attainment, the mean accuracy and the load, the second one the cost.

    Args:
        courses: by contender, as ``Series.figures`` tells them; each with one query or more.
    """
    merged = {name: coarser(course, _MOST_POINTS) for name, course in courses.items()}
    most_per_s = max(max(each["queries"]) / each["step_s"] for each in merged.values())
    columns = min(_COLUMNS, max(1, len(merged)))
    rows = ceil(len(merged) / columns)

    def draw(figure: Any) -> None:
        panels = figure.subplots(
            2 * rows, columns, squeeze=False, height_ratios=[_COURSE_IN, _COST_IN] * rows
        )
        for panel in panels.flat[len(merged) :]:
            panel.set_visible(False)
        accuracies, costs = [], []
        for place, (name, course) in enumerate(merged.items()):
            row, column = 2 * (place // columns), place % columns
            upper, lower = panels[row][column], panels[row + 1][column]
            upper.set_visible(True)
            lower.set_visible(True)
            upper.set_title(_brief(name), fontsize=NAME_PT)
            accuracies.append(_draw_course(upper, course, most_per_s))
            _draw_cost(lower, course)
            costs.append(lower)
        _share_limits(accuracies)
        _share_limits(costs)
        for axes in costs:
            axes.set_ylim(bottom=0.0)

    inches = (WIDTH_IN, 0.3 + rows * (_COURSE_IN + _COST_IN + 0.4))
    return _chart(draw, inches, "Over time", [_spoken_course(*each) for each in courses.items()])


def coarser(course: Mapping[str, Any], most: int) -> dict[str, Any]:
    """A course with steps so long that at most ``most`` are left, as arrays float64 [steps].

    Where nothing was answered, the mean accuracy is NaN.
    """
    count = len(course["queries"])
    together = max(1, ceil(count / most))
    starts = np.arange(0, count, together)
    merged: dict[str, Any] = {
        name: np.add.reduceat(np.array(course[name], np.float64), starts)
        for name in ("queries", "good", "answered", "cost_usd", "rent_usd")
    }
    means = np.nan_to_num(np.array(course["mean_accuracy"], np.float64))  # None becomes NaN, then 0
    totals = np.add.reduceat(means * np.array(course["answered"], np.float64), starts)
    merged["mean_accuracy"] = _ratio(totals, merged["answered"])
    merged["step_s"] = course["step_s"] * together
    return merged


def _chart(
    draw: Callable[[Any], None], inches: tuple[float, float], title: str, said: Sequence[str]
) -> Chart:
    """A chart; one that says so if there is nothing to show."""
    if said:
        return Chart(draw, inches, f"{title}. {'; '.join(said)}")

    def draw_nothing(figure: Any) -> None:
        figure.text(0.5, 0.5, "nothing to show", ha="center", va="center", color=MUTED)

    return Chart(draw_nothing, (inches[0], 0.8), title)


def _draw_bound(axes: Any, value: float, name: str) -> None:
    axes.axvline(value, color=RED, linestyle="--", linewidth=1.2)
    axes.annotate(
        name,
        (value, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=NAME_PT,
        color=RED,
    )


def _draw_course(axes: Any, course: Mapping[str, Any], most_per_s: float) -> Any:
    """Draw attainment and load; returns the axes of the accuracy, which has another scale."""
    at_s = _middles_s(course)
    load = course["queries"] / course["step_s"] / most_per_s
    axes.fill_between(at_s, load, step="mid", color=LINE, linewidth=0)
    attained = _ratio(course["good"], course["queries"])
    _draw_line(axes, at_s, attained, TEAL)
    axes.set_ylim(0.0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xticklabels([])
    right = axes.twinx()
    _draw_line(right, at_s, course["mean_accuracy"], ORANGE)
    right.grid(visible=False)
    _settle(axes, course)
    return right


def _draw_cost(axes: Any, course: Mapping[str, Any]) -> None:
    at_s, hours = _middles_s(course), course["step_s"] / 3600.0
    axes.plot(at_s, course["rent_usd"] / hours, "--", color=MUTED, linewidth=1.2)
    axes.plot(at_s, course["cost_usd"] / hours, color=TEAL, linewidth=1.2)
    _settle(axes, course)


def _draw_line(axes: Any, at_s: Any, values: Any, colour: str) -> None:
    """A line with gaps where values are NaN, and dots where both neighbours are."""
    gaps = np.isnan(np.concatenate([[np.nan], values, [np.nan]]))
    alone = np.flatnonzero(gaps[:-2] & ~gaps[1:-1] & gaps[2:])
    axes.plot(at_s, values, ".-", color=colour, linewidth=1.2, markersize=3, markevery=list(alone))


def _settle(axes: Any, course: Mapping[str, Any]) -> None:
    axes.set_xlim(0.0, course["step_s"] * len(course["queries"]))
    axes.tick_params(labelsize=7.5)


def _share_limits(panels: Sequence[Any]) -> None:
    limits = [panel.get_ylim() for panel in panels]
    for panel in panels:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        panel.tick_params(labelsize=7.5)


def _middles_s(course: Mapping[str, Any]) -> Any:
    return (np.arange(len(course["queries"])) + 0.5) * course["step_s"]


def _ratio(part: Any, whole: Any) -> Any:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def _brief(name: str) -> str:
    """A name as there is room for it beside a picture.

    The end is kept: names such as ``module:Class`` have the same beginning.
    """
    return name if len(name) <= _MOST_LETTERS else f"…{name[1 - _MOST_LETTERS :]}"


def _spoken(mark: Mark, number: Callable[[float], str]) -> str:
    if mark.low is None or mark.high is None:
        return number(mark.mean)
    return f"{number(mark.mean)} ({number(mark.low)} to {number(mark.high)})"


def _spoken_course(name: str, course: Mapping[str, Any]) -> str:
    queries, span_s = sum(course["queries"]), course["step_s"] * len(course["queries"])
    per_hour = 3600.0 / span_s
    return (
        f"{name}: {queries} queries in {span_s:g} s, attained "
        f"{sum(course['good']) / max(1, queries):.1%}; on average "
        f"{sum(course['cost_usd']) * per_hour:.3g} USD an hour for device time of what was "
        f"answered, {sum(course['rent_usd']) * per_hour:.3g} for rent"
    )
