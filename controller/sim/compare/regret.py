"""How much a contender loses, world by world, against the best of all others there.

The margin of a contender in a world is its value per query less the best other's, in points
(hundredths): below zero it is what is regretted. A mean over worlds hides where a policy fails; the
distribution of margins does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, median, variance
from typing import Any, Final

import numpy as np

NEAR_POINTS: Final = 0.5
"""As good as the best: noise of one run, about."""

_UNUSUAL: Final = 5
"""Features of a world that are named."""

Worlds = Sequence[Mapping[str, Any]]


def regret_of(
    scenarios: Sequence[Mapping[str, Any]], features: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """The margins of contenders over worlds, as plain data.

    Args:
        scenarios: as in the document of a comparison, of two contenders or more.

    Returns:
        ``first``: the contender that ``summary``, ``causes`` and ``worlds`` are about; ``summary``:
        the distribution of its margins; ``contenders``: their means, and how often they are near
        the best; ``causes``: by feature, the mean margin in the lower and the upper half of the
        worlds, the clearest difference first; ``worlds``: the worst first. Worlds in which the
        first contender or all others failed have no margin, and are in ``failed``.
    """
    names = [row["contender"] for row in scenarios[0]["rows"]]
    first = names[0]
    told = [_world(each, features[each["world"]]) for each in scenarios]
    known = sorted(
        (each for each in told if first in each["margins"]), key=lambda w: w["margins"][first]
    )
    unusual = _unusual(known)
    return {
        "first": first,
        "near_points": NEAR_POINTS,
        "summary": _summary(known, first),
        "contenders": [_contender(told, name) for name in names],
        "causes": _causes(known, first),
        "worlds": [
            {**each, "margin": each["margins"][first], "unusual": unusual[place]}
            for place, each in enumerate(known)
        ],
        "failed": [each["label"] for each in told if first not in each["margins"]],
    }


def _world(scenario: Mapping[str, Any], features: Mapping[str, float]) -> dict[str, Any]:
    rows = [row for row in scenario["rows"] if row["runs"] and not row["failed"]]
    rows = [row for row in rows if row["value_per_query"]["mean"] is not None]
    values = {row["contender"]: row["value_per_query"]["mean"] for row in rows}
    others = {
        name: max((value, other) for other, value in values.items() if other != name)
        for name in values
        if len(values) > 1
    }
    return {
        "label": scenario["label"],
        "world": scenario["world"],
        "values": values,
        "violations_percent": {row["contender"]: row["violations_percent"]["mean"] for row in rows},
        "bound": scenario["bound"]["value_per_query"]["mean"],
        "margins": {name: 100.0 * (values[name] - best) for name, (best, _) in others.items()},
        "best_others": {name: other for name, (_, other) in others.items()},
        "features": {**features, "load": features["load"] * scenario["load"]},
    }


def _summary(worlds: Worlds, first: str) -> dict[str, Any]:
    margins = [each["margins"][first] for each in worlds]
    to_bound = [
        100.0 * (each["values"][first] - each["bound"])
        for each in worlds
        if each["bound"] is not None
    ]
    return {
        "worlds": len(margins),
        "mean": fmean(margins) if margins else None,
        "median": median(margins) if margins else None,
        "worst_decile": float(np.quantile(margins, 0.1)) if margins else None,
        "worst": min(margins, default=None),
        "share_near": _share_near(margins),
        "mean_to_bound": fmean(to_bound) if to_bound else None,
    }


def _contender(worlds: Worlds, name: str) -> dict[str, Any]:
    mine = [each for each in worlds if name in each["values"]]
    margins = [each["margins"][name] for each in mine if name in each["margins"]]
    return {
        "contender": name,
        "worlds": len(mine),
        "failed": len(worlds) - len(mine),
        "value_per_query": fmean(each["values"][name] for each in mine) if mine else None,
        "violations_percent": (
            fmean(each["violations_percent"][name] for each in mine) if mine else None
        ),
        "mean_margin": fmean(margins) if margins else None,
        "worst_decile": float(np.quantile(margins, 0.1)) if margins else None,
        "worst": min(margins, default=None),
        "share_near": _share_near(margins),
    }


def _share_near(margins: Sequence[float]) -> float | None:
    return fmean(each >= -NEAR_POINTS for each in margins) if margins else None


def _causes(worlds: Worlds, first: str) -> list[dict[str, Any]]:
    """By feature, worlds up to its median and those above it; alike where the median is the most:
    then those below it and the others."""
    causes = []
    for feature in worlds[0]["features"] if worlds else ():
        values = [each["features"][feature] for each in worlds]
        middle = median(values)
        if middle == max(values):
            lower = [value < middle for value in values]
        else:
            lower = [value <= middle for value in values]
        halves = [
            [each["margins"][first] for each, low in zip(worlds, lower, strict=True) if low is half]
            for half in (True, False)
        ]
        if not all(halves):
            continue
        means = [fmean(half) for half in halves]
        alone = any(len(half) < 2 for half in halves)
        error = 0.0 if alone else sqrt(sum(variance(half) / len(half) for half in halves))
        causes.append({
            "feature": feature,
            "median": middle,
            "lower": means[0],
            "upper": means[1],
            "lower_worlds": len(halves[0]),
            "upper_worlds": len(halves[1]),
            "errors": abs(means[1] - means[0]) / error if error else None,
        })  # fmt: skip
    return sorted(causes, key=lambda each: -(each["errors"] or 0.0))


def _unusual(worlds: Worlds) -> list[list[str]]:
    """By world, the features that are furthest from those of the median world, the first most."""
    if not worlds:
        return []
    names = list(worlds[0]["features"])
    values = np.array([[each["features"][name] for name in names] for each in worlds])
    below = (values[:, np.newaxis] > values).sum(axis=1)
    above = (values[:, np.newaxis] < values).sum(axis=1)
    rank = (below - above) / max(len(worlds) - 1, 1)  # -1 the least of all, 1 the most
    return [
        [names[place] for place in np.argsort(-np.abs(row), kind="stable")[:_UNUSUAL]]
        for row in rank
    ]
