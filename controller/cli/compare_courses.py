"""A comparison's pictures over time: what became of queries, and what they cost, by contender."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modelless.controller.cli.compare_svg import TOP, line, nothing, svg, text

_MOST_POINTS = 120
"""Of a line: more would not be seen in a panel."""


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


def _usd_per_hour(series: Mapping[str, Any], kind: str) -> list[float]:
    return [usd * 3600.0 / series["step_s"] for usd in series[kind]]


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
