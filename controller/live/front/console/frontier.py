"""The page *Frontier*: accuracy against latency and cost, with the live traffic on it.

Each task has charts of its own: accuracies of two tasks cannot be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from modelless.controller.live.front.console.pages import VariantRow

WIDTH: Final = 640
HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 30, 40
_LEAST_RADIUS, _MORE_RADIUS = 5.0, 18.0
HEADS: Final = (
    "no.", "variant", "device", "accuracy, %", "predicted, ms", "observed, ms", "ratio",
    "USD/1,000", "answers/s", "frontier",
)  # fmt: skip
_MOST_TASKS: Final = 8


class Point(NamedTuple):
    """A variant on a device class.

    Attributes:
        p50_ms: of one item, as predicted.
        observed_ms: device time of an item, mean since the start; None if it ran none.
        per_s: answers per second of the variant, on all devices.
        is_best: whether no other of the task is at least as accurate, fast and cheap.
    """

    variant_id: str
    device: str
    accuracy: float
    p50_ms: float
    observed_ms: float | None
    usd: float
    per_s: float
    is_best: bool

    @property
    def task(self) -> str:
        return self.variant_id.partition("/")[0]

    @property
    def row(self) -> tuple[str, ...]:
        """Its row of the table under ``HEADS``."""
        observed = self.observed_ms
        return (
            self.variant_id,
            self.device,
            f"{self.accuracy:.2f}",
            f"{self.p50_ms:.3g}",
            "-" if observed is None else f"{observed:.3g}",
            "-" if observed is None else f"{observed / self.p50_ms:.2f}",
            f"{self.usd:.3g}",
            f"{self.per_s:.1f}",
            "yes" if self.is_best else "no",
        )


class Chart(NamedTuple):
    """Accuracy of one task's points against another figure, as it is drawn.

    Attributes:
        about: the other figure, with its unit.
        x_ticks, y_ticks: text and place.
        marks: number in the table, point, x, y, radius, and x of what was observed or None.
    """

    task: str
    about: str
    x_ticks: Sequence[tuple[str, float]]
    y_ticks: Sequence[tuple[str, float]]
    marks: Sequence[tuple[int, Point, float, float, float, float | None]]


def points_of(
    status: Mapping[str, Any], variants: Sequence[VariantRow], per_s: Mapping[str, float]
) -> list[Point]:
    """The variants in each device class that the cluster has, the most accurate first.

    Args:
        per_s: answers per second, by variant.
    """
    there = {member["device_class"] for member in status["members"]}
    placements = status.get("statistics", {}).get("placements", {})
    found = []
    for name, accuracy, p50_s, usd, _ in variants:
        for device in sorted(p50_s.keys() & there):
            if not 0.0 < p50_s[device] < math.inf:
                continue
            items, _, busy_s = placements.get(name, {}).get(device, (0, 0, 0.0))
            observed_ms = 1e3 * busy_s / items if items else None
            found.append(
                Point(name, device, accuracy.percent, 1e3 * p50_s[device], observed_ms,
                      usd[device], per_s.get(name, 0.0), False)
            )  # fmt: skip
    return _with_best(found)


def draw_frontier(
    status: Mapping[str, Any], variants: Sequence[VariantRow], per_s: Mapping[str, float]
) -> dict[str, Any]:
    """The values of the page's template."""
    points = points_of(status, variants, per_s)
    by_task: dict[str, list[tuple[int, Point]]] = {}
    for number, each in enumerate(points, 1):
        by_task.setdefault(each.task, []).append((number, each))
    busiest = sorted(by_task, key=lambda task: (-sum(p.per_s for _, p in by_task[task]), task))
    charts = []
    for task in busiest[:_MOST_TASKS]:
        charts.append(_draw(task, "latency of one item, ms", by_task[task], _latency))
        if all(each.usd > 0.0 for _, each in by_task[task]):
            charts.append(_draw(task, "USD per 1,000", by_task[task], lambda p: (p.usd, None)))
    return {
        "charts": charts, "heads": HEADS, "width": WIDTH, "height": HEIGHT,
        "rows": [(f"{number}", *each.row) for number, each in enumerate(points, 1)],
        "left_out": len(busiest[_MOST_TASKS:]),
    }  # fmt: skip


def _latency(point: Point) -> tuple[float, float | None]:
    return point.p50_ms, point.observed_ms


def _draw(
    task: str,
    about: str,
    points: Sequence[tuple[int, Point]],
    figure: Callable[[Point], tuple[float, float | None]],
) -> Chart:
    """Draw points by accuracy and a figure, on a logarithmic scale; its observed value, too."""
    every = [value for _, each in points for value in figure(each) if value]
    low, high = math.log10(min(every) / 1.3), math.log10(max(every) * 1.3)
    floor = min(each.accuracy for _, each in points) - 1.0
    span = max(each.accuracy for _, each in points) + 1.0 - floor
    most = max(each.per_s for _, each in points) or 1.0

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(percent: float) -> float:
        return _TOP + (1.0 - (percent - floor) / span) * (HEIGHT - _TOP - _BOTTOM)

    marks = []
    for number, each in points:
        radius = _LEAST_RADIUS + _MORE_RADIUS * math.sqrt(each.per_s / most)
        value, observed = figure(each)
        place = x(observed) if observed else None
        marks.append((number, each, x(value), y(each.accuracy), radius, place))
    decades = range(math.floor(low), math.ceil(high) + 1)
    steps = (1,) if high - low > 3.0 else (1, 2, 5)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    x_ticks = [(f"{value:g}", x(value)) for value in ticks if low <= math.log10(value) <= high]
    percents = [floor + span * n / 4 for n in range(5)]
    y_ticks = [(f"{percent:.1f}", y(percent)) for percent in percents]
    return Chart(task, about, x_ticks, y_ticks, marks)


def _with_best(points: Sequence[Point]) -> list[Point]:
    """Mark the points that no other of their task beats; the most accurate first.

    Whatever beats a point stands before it in that order, and so does a best one that beats it.
    """
    best: dict[str, list[Point]] = {}
    found = []
    for each in sorted(points, key=lambda p: (-p.accuracy, p.p50_ms, p.usd)):
        of_task = best.setdefault(each.task, [])
        figures = each.accuracy, each.p50_ms, each.usd
        is_best = not any(
            o.p50_ms <= each.p50_ms
            and o.usd <= each.usd
            and (o.accuracy, o.p50_ms, o.usd) != figures
            for o in of_task
        )
        if is_best:
            of_task.append(each)
        found.append(each._replace(is_best=is_best))
    return found
