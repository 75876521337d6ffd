"""The page *Frontier*: accuracy against latency and cost, with the live traffic on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from modelless.controller.live.front.console.pages import VariantRow

WIDTH: Final = 640
HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 14, 40
_LEAST_RADIUS, _MORE_RADIUS = 5.0, 18.0
HEADS: Final = (
    "variant", "device", "accuracy, %", "predicted p50, ms", "observed mean, ms",
    "observed / predicted", "USD per 1,000", "answers/s", "on the frontier",
)  # fmt: skip


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


def points_of(
    status: Mapping[str, Any], variants: Sequence[VariantRow], per_s: Mapping[str, float]
) -> list[Point]:
    """The variants in each device class that the cluster has, the most accurate first.

    Args:
        per_s: answers per second, by variant.
    """
    there = {member["device_class"] for member in status["members"]}
    batches = status.get("statistics", {}).get("batches", {})
    found = []
    for name, accuracy, p50_s, usd in variants:
        items, _, busy_s = batches.get(name, (0, 0, 0.0))
        observed_ms = 1e3 * busy_s / items if items else None
        found += [
            Point(name, device, accuracy.percent, 1e3 * p50_s[device], observed_ms, usd[device],
                  per_s.get(name, 0.0), False)
            for device in sorted(p50_s.keys() & there)
            if 0.0 < p50_s[device] < math.inf
        ]  # fmt: skip
    found = [each._replace(is_best=not any(_beats(o, each) for o in found)) for each in found]
    return sorted(found, key=lambda each: (-each.accuracy, each.p50_ms))


def draw_frontier(
    status: Mapping[str, Any], variants: Sequence[VariantRow], per_s: Mapping[str, float]
) -> dict[str, Any]:
    """The values of the page's template."""
    points = points_of(status, variants, per_s)
    values: dict[str, Any] = {
        "points": points, "heads": HEADS, "rows": [each.row for each in points],
        "width": WIDTH, "height": HEIGHT, "marks": [], "x_ticks": [], "y_ticks": [],
    }  # fmt: skip
    if not points:
        return values
    times = [each.p50_ms for each in points] + [p.observed_ms for p in points if p.observed_ms]
    low, high = math.log10(min(times) / 1.3), math.log10(max(times) * 1.3)
    floor = min(each.accuracy for each in points) - 1.0
    span = max(each.accuracy for each in points) + 1.0 - floor
    most = max(each.per_s for each in points) or 1.0

    def x(ms: float) -> float:
        return _LEFT + (math.log10(ms) - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(percent: float) -> float:
        return _TOP + (1.0 - (percent - floor) / span) * (HEIGHT - _TOP - _BOTTOM)

    for each in points:
        radius = _LEAST_RADIUS + _MORE_RADIUS * math.sqrt(each.per_s / most)
        observed = x(each.observed_ms) if each.observed_ms else None
        values["marks"].append((each, x(each.p50_ms), y(each.accuracy), radius, observed))
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    values["x_ticks"] = [(f"{ms:g}", x(ms)) for ms in ticks if low <= math.log10(ms) <= high]
    values["y_ticks"] = [
        (f"{percent:.1f}", y(percent)) for percent in (floor + span * n / 4 for n in range(5))
    ]
    return values


def _beats(one: Point, other: Point) -> bool:
    if one.variant_id.partition("/")[0] != other.variant_id.partition("/")[0]:
        return False
    mine = (-one.accuracy, one.p50_ms, one.usd)
    theirs = (-other.accuracy, other.p50_ms, other.usd)
    return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))
