"""The results of a comparison as plain data: intervals, paired differences, shares of the bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import Any, Final

from scipy.stats import t

from modelless.common.errors import InvalidInputError
from modelless.controller.sim.compare.compare import Scenario
from modelless.controller.sim.compare.contenders import Contender
from modelless.controller.sim.compare.jobs import BOUND, Figures, Run

Interval = dict[str, float | None]
"""``mean``, ``low`` and ``high``; None is unknown."""


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval by Student's t; no interval from fewer than two values."""
    if not values:
        return {"mean": None, "low": None, "high": None}
    mean = fmean(values)
    if len(values) == 1:
        return {"mean": mean, "low": None, "high": None}
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


SCHEMA: Final = "modelless-comparison/1"
"""Goes up when a field changes its meaning or goes away; a new field changes nothing."""

COMPARED: Final[Mapping[str, Callable[[Figures], float | None]]] = {
    "value_per_query": lambda told: told["value_per_query"],
    "attainment": lambda told: told["attainment"],
    "violations_percent": lambda told: _ratio(100.0 * told["violated"], told["queries"]),
    "mean_accuracy": lambda told: told["mean_accuracy"],
    "cost_usd": lambda told: told["cost_usd"],
    "cost_usd_per_million": lambda told: _ratio(1e6 * told["cost_usd"], told["queries"]),
    "rent_usd": lambda told: told["rent_usd"],
    "cold_start_s": lambda told: told["cold_start_s"],
}
"""The figures that are compared, and where they are in a run's."""


def document_of(
    scenarios: Sequence[Scenario],
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    runs: Sequence[Run],
) -> dict[str, Any]:
    """A comparison as plain data, fit for JSON."""
    return {
        "schema": SCHEMA,
        "seeds": list(seeds),
        "contenders": [
            {
                "name": each.name,
                "description": each.description,
                "source": each.source,
                "policies": _plain(each.policies),
            }
            for each in contenders
        ],
        "scenarios": [
            _scenario(each, [run for run in runs if run.scenario == each.label], seeds)
            for each in scenarios
        ],
    }


def table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One scenario's contenders, a row each.

    Each of ``COMPARED`` with its mean and 95 % interval, and as ``..._difference`` its paired
    difference to the first contender's; ``share_of_bound`` is the value per query over the bound's.

    Raises:
        InvalidInputError: no runs.
    """
    by_name: dict[str, dict[int, Figures]] = {}
    errors: dict[str, list[str]] = {}
    for run in runs:
        mine = by_name.setdefault(run.contender, {})
        if run.figures is not None:
            mine[run.seed] = run.figures
        else:
            errors.setdefault(run.contender, []).append(run.error)
    bounds = by_name.pop(BOUND, {})
    if not by_name:
        raise InvalidInputError.of("runs", list(runs), "at least one")
    first = next(iter(by_name.values()))
    rows = []
    for name, mine in by_name.items():
        failed = errors.get(name, [])
        row: dict[str, Any] = {
            "contender": name,
            "runs": len(mine),
            "failed": len(failed),
            "error": failed[0] if failed else "",
            "policy_problems": _problems(mine.values()),
            "plans": _plans(mine.values()),
            "share_of_bound": interval(_shares_of(mine, bounds)),
        }
        for figure, read in COMPARED.items():
            values = {seed: read(told) for seed, told in mine.items()}
            row[figure] = interval([value for value in values.values() if value is not None])
            paired = []
            for seed, value in values.items():
                reference = read(first[seed]) if seed in first else None
                if value is not None and reference is not None:
                    paired.append(value - reference)
            row[f"{figure}_difference"] = interval(paired)
        rows.append(row)
    return rows


def _scenario(scenario: Scenario, runs: Sequence[Run], seeds: Sequence[int]) -> dict[str, Any]:
    return {
        "label": scenario.label,
        "world": scenario.file.world.name,
        "description": scenario.file.world.description,
        "load": scenario.load,
        "bound": _bound([run for run in runs if run.contender == BOUND]),
        "rows": table(runs),
        "series": {
            "seed": scenario.first_seed + seeds[0] - 1,
            "contenders": {
                run.contender: run.figures["series"]
                for run in runs
                if run.seed == scenario.first_seed + seeds[0] - 1
                and run.contender != BOUND
                and run.figures is not None
                and "series" in run.figures
            },
        },
        "runs": [
            {
                "contender": run.contender,
                "seed": run.seed,
                "error": run.error,
                "figures": {k: v for k, v in run.figures.items() if k != "series"}
                if run.figures is not None
                else None,
            }
            for run in runs
        ],
    }


def _bound(runs: Sequence[Run]) -> dict[str, Any]:
    """The bound's intervals and how it comes about, or why there is none.

    ``unavoidable_violations_percent``: of all queries; nobody has fewer, in expectation.
    """
    known = [run.figures for run in runs if run.figures is not None]
    values: dict[str, Interval] = {
        figure: interval([told[figure] for told in known if told[figure] is not None])
        for figure in ("value_per_query", "attainment")
    }
    # Attainment is good queries over all, and its bound holds by itself, whatever their accuracy.
    unavoidable = [
        100.0 * (1.0 - told["attainment"]) for told in known if told["attainment"] is not None
    ]
    missing = next((run.error for run in runs if run.error), "")
    values["unavoidable_violations_percent"] = interval(unavoidable)
    return {**values, "why": known[0]["why"] if known else "", "missing": missing}


def _shares_of(mine: Mapping[int, Figures], bounds: Mapping[int, Figures]) -> list[float]:
    shares = []
    for seed, told in mine.items():
        value = told["value_per_query"]
        bound = bounds[seed]["value_per_query"] if seed in bounds else None
        if value is not None and bound:
            shares.append(value / bound)
    return shares


def _problems(told: Any) -> dict[str, int]:
    """The mistakes of policies, over all runs; the first few."""
    counts: Counter[str] = Counter()
    for figures in told:
        counts.update(figures["policy_problems"])
    return dict(list(counts.items())[:20])


def _plans(told: Iterable[Figures]) -> dict[str, Any] | None:
    """The quality of plans over all runs, see ``summary.Plans``; None if there were none."""
    runs = [figures["plans"] for figures in told if figures.get("plans")]
    if not runs:
        return None
    counts = {
        name: sum(run[name] for run in runs)
        for name in ("count", "proven", "greedy", "unknown", "by_clock")
    }
    known = [run for run in runs if run["mean_gap"] is not None]
    of_known = counts["count"] - counts["unknown"]
    return {
        **counts,
        "mean_gap": sum(run["mean_gap"] * (run["count"] - run["unknown"]) for run in known)
        / of_known
        if of_known
        else None,
        "worst_gap": max((run["worst_gap"] for run in known), default=None),
    }


def _plain(value: Any) -> Any:
    """A value of YAML as one of JSON: infinity, NaN, dates and the like become text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    return value if value is None or isinstance(value, str | int) else str(value)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
