"""The rows of a comparison on random worlds, for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

CONTENDER_HEADS: Final = (
    "contender", "value/query", "violations %", "margin", "worst decile", "worst", "near the best",
)  # fmt: skip
CAUSE_HEADS: Final = ("feature", "median", "lower half", "upper half", "difference / error")
WORLD_HEADS: Final = ("world", "margin", "value/query", "best other", "its value", "unusual in it")


def summary_rows(regret: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The distribution of the first contender's margins, in points."""
    summary = regret["summary"]
    rows = [
        ("worlds", str(summary["worlds"])),
        ("mean margin", _points(summary["mean"])),
        ("median", _points(summary["median"])),
        ("worst decile", _points(summary["worst_decile"])),
        ("worst world", _points(summary["worst"])),
        (f"within {regret['near_points']:g} points of the best, or better",
         _share(summary["share_near"])),
    ]  # fmt: skip
    if summary["mean_to_bound"] is not None:
        rows.append(("mean distance to the bound", _points(summary["mean_to_bound"])))
    if regret["failed"]:
        rows.append(("worlds without a margin, for failed runs", str(len(regret["failed"]))))
    return rows


def contender_cells(contender: Mapping[str, Any]) -> list[str]:
    """A contender's row under ``CONTENDER_HEADS``."""
    name = contender["contender"]
    if contender["failed"]:
        name += f" (failed in {contender['failed']})"
    return [
        name,
        _number(contender["value_per_query"], ".4f"),
        _number(contender["violations_percent"], ".2f"),
        _points(contender["mean_margin"]),
        _points(contender["worst_decile"]),
        _points(contender["worst"]),
        _share(contender["share_near"]),
    ]


def cause_cells(cause: Mapping[str, Any]) -> list[str]:
    """A feature's row under ``CAUSE_HEADS``."""
    return [
        cause["feature"],
        f"{cause['median']:.3g}",
        _points(cause["lower"]),
        _points(cause["upper"]),
        _number(cause["errors"], ".1f"),
    ]


def world_cells(world: Mapping[str, Any], first: str) -> list[str]:
    """A world's row under ``WORLD_HEADS``."""
    other = world["best_others"][first]
    return [
        world["label"],
        _points(world["margin"]),
        f"{world['values'][first]:.4f}",
        other,
        f"{world['values'][other]:.4f}",
        ", ".join(f"{name} {world['features'][name]:.3g}" for name in world["unusual"]),
    ]


def _points(value: float | None) -> str:
    return _number(value, "+.2f")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.0f} %"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
