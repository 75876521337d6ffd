"""The columns of a comparison, for the table on the terminal and the one in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_UNKNOWN: Final = "-"
_ALIKE: Final = "none"
_LEAST_PERCENT: Final = 0.005
"""Of violations: less would be shown as none."""


@dataclass(frozen=True, slots=True)
class Column:
    """A figure that is shown.

    Attributes:
        form: of the mean, and of half the interval's width.
        is_percent: the figure is a share, and shown as per cent.
        most_wins: the best is the highest; None: there is no best.
    """

    key: str
    head: str
    form: str
    is_percent: bool = False
    most_wins: bool | None = None


COLUMNS: Final = (
    Column("value_per_query", "value/query", ".4f", most_wins=True),
    Column("value_per_query_difference", "vs first", "+.4f"),
    Column("share_of_bound", "of bound", ".1f", is_percent=True, most_wins=True),
    Column("violations_percent", "violations %", ".2f", most_wins=False),
    Column("mean_accuracy", "accuracy %", ".2f", most_wins=True),
    Column("cost_usd_per_million", "USD a million", ".3g", most_wins=False),
    Column("cold_start_s", "cold-start s", ".1f", most_wins=False),
)
"""After the contender's name."""


def cell_of(column: Column, row: Mapping[str, Any]) -> str:
    """A row's figure as text: its mean, and half the width of its interval where there is one."""
    told = row[column.key]
    mean, high = told["mean"], told["high"]
    if mean is None:
        return _UNKNOWN
    if column.key.endswith("_difference") and mean == 0.0 and high in (0.0, None):
        return _ALIKE
    scale = 100.0 if column.is_percent else 1.0
    unit = " %" if column.is_percent else ""
    text = format(mean * scale, column.form)
    if high is not None:
        half = format((high - mean) * scale, column.form.replace("+", ""))
        text += f" ± {half}"
    return text + unit


def name_of(row: Mapping[str, Any]) -> str:
    """The contender; and of how many runs its figures are, if some failed."""
    if row["failed"] and row["runs"]:
        return f"{row['contender']} ({row['runs']} of {row['runs'] + row['failed']} runs)"
    return str(row["contender"])


def scaling_text(contenders: Sequence[Mapping[str, Any]]) -> str:
    """Which contenders have which scaling policy, if they differ in it; else empty."""
    names: dict[str, list[str]] = {}
    for contender in contenders:
        scaling = contender["policies"].get("scaling", "the world's")
        name = scaling["policy"] if isinstance(scaling, Mapping) else scaling
        names.setdefault(str(name), []).append(contender["name"])
    if len(names) < 2:
        return ""
    told = "; ".join(f"{scaling}: {', '.join(those)}" for scaling, those in names.items())
    return f"the contenders differ in scaling, not in selection alone ({told})"


def best_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, set[int]]:
    """By figure, the places of the rows whose mean is the best, for bold type.

    Ties share it; where more than half would, none has it. A row of which runs failed cannot have
    it: its mean is over other seeds.
    """
    best = {}
    for column in COLUMNS:
        means = {
            place: round(row[column.key]["mean"], 9)
            for place, row in enumerate(rows)
            if row[column.key]["mean"] is not None and not row["failed"]
        }
        wanted = set[int]()
        if column.most_wins is not None and means:
            top = max(means.values()) if column.most_wins else min(means.values())
            wanted = {place for place, mean in means.items() if mean == top}
        best[column.key] = wanted if 2 * len(wanted) <= len(means) else set()
    return best


def bound_words(scenario: Mapping[str, Any]) -> str:
    """The clairvoyant bound: its height, what is unavoidable, and why; or why there is none."""
    bound = scenario["bound"]
    value = bound["value_per_query"]["mean"]
    if value is None:
        return f"no bound: {bound['missing'] or 'it was not reckoned'}"
    least = unavoidable_percent(scenario)
    known = f"; at least {least:.2f} % violations for anybody" if least is not None else ""
    return f"clairvoyant bound: {value:.4f}{known}. {bound['why']}"


def unavoidable_percent(scenario: Mapping[str, Any]) -> float | None:
    """Violations that no policy avoids in expectation, per cent; None if there are none to tell."""
    mean: float | None = scenario["bound"]["unavoidable_violations_percent"]["mean"]
    return mean if mean is not None and mean >= _LEAST_PERCENT else None


def plans_text(plans: Mapping[str, Any] | None) -> str:
    """How good a policy's plans were known to be, in a line; empty if it does not optimise."""
    if not plans:
        return ""
    count, worst = plans["count"], plans["worst_gap"]
    parts = [f"{plans['proven']} of {count} plans solved to optimality"]
    if plans["proven"] + plans["unknown"] < count:
        parts.append(f"the worst within {100.0 * worst:.2g} % of the bound")
    if plans["unknown"]:
        parts.append(f"{plans['unknown']} of which nobody knows how far from the best")
    if plans["greedy"]:
        parts.append(f"{plans['greedy']} greedy")
    if plans["by_clock"]:
        parts.append(f"{plans['by_clock']} stopped by the clock: elsewhere they may be others")
    return ", ".join(parts)


def notes_of(scenario: Mapping[str, Any]) -> list[str]:
    """Remarks on a table: runs that failed, what policies did wrong, and how good plans were.

    The row of a contender without any run says why.
    """
    notes = []
    for row in scenario["rows"]:
        name = row["contender"]
        if row["failed"] and row["runs"]:
            runs = row["failed"] + row["runs"]
            notes.append(f"{name}: {row['failed']} of {runs} runs failed: {row['error']}")
        notes += [
            f"{name}: {problem} ({count} times)"
            for problem, count in row["policy_problems"].items()
        ]
        plans = plans_text(row.get("plans"))
        notes += [f"{name}: {plans}"] if plans else []
    return notes


Table = tuple[Sequence[str], list[list[str]]]
"""Heads and rows."""


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


def contender_table(regret: Mapping[str, Any]) -> Table:
    """Everybody's means over the worlds."""
    heads = ("contender", "value/query", "violations %", "margin", "worst decile", "worst",
             "near the best")  # fmt: skip
    rows = [
        [
            each["contender"] + (f" (failed in {each['failed']})" if each["failed"] else ""),
            _number(each["value_per_query"], ".4f"),
            _number(each["violations_percent"], ".2f"),
            _points(each["mean_margin"]),
            _points(each["worst_decile"]),
            _points(each["worst"]),
            _share(each["share_near"]),
        ]
        for each in regret["contenders"]
    ]
    return heads, rows


def cause_table(regret: Mapping[str, Any]) -> Table:
    """The first contender's mean margin by what was drawn, the clearest causes first."""
    rows = [
        [
            each["feature"],
            f"{each['median']:.3g}",
            _points(each["lower"]),
            _points(each["upper"]),
            _number(each["errors"], ".1f"),
        ]
        for each in regret["causes"]
    ]
    return ("feature", "median", "lower half", "upper half", "difference / error"), rows


def world_table(regret: Mapping[str, Any]) -> Table:
    """The worlds, those with the first contender's worst margins first."""
    heads = ("world", "margin", "value/query", "best other", "its value", "unusual in it")
    rows = []
    for world in regret["worlds"]:
        first, other = regret["first"], world["best_others"][regret["first"]]
        unusual = (f"{name} {world['features'][name]:.3g}" for name in world["unusual"])
        mine, its = (f"{world['values'][name]:.4f}" for name in (first, other))
        rows.append(
            [world["label"], _points(world["margin"]), mine, other, its, ", ".join(unusual)]
        )
    return heads, rows


def _points(value: float | None) -> str:
    return _number(value, "+.2f")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.0f} %"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
