"""What a running modelless did lately, from two of its statuses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from modelless.controller.usecases.cluster import status
from modelless.controller.usecases.home import Home, home_folder, open_home

_ENDS: Final = ("served", "served-late", "refused")


def watch(
    url: str | None = None, *, interval_s: float = 2.0, home: Home = None
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each interval, for ever; see ``figures_of``.

    Args:
        url: of the server; default: the one that runs from ``home``.
        interval_s: seconds between two looks.
        home: see ``home_folder``; its store knows the accuracies of the variants.

    Raises:
        ModellessError: nothing is up, or it does not answer any more.
    """
    before = status(url, home=home)
    while True:
        time.sleep(interval_s)
        after = status(url, home=home)
        if after.get("up_s") == before.get("up_s") and after.get("members"):
            continue  # told by another gateway, which asked the control loop no later
        yield figures_of(before, after, _accuracies(after, home))
        before = after


def figures_of(
    before: Mapping[str, Any], after: Mapping[str, Any], accuracy_percent: Mapping[str, float]
) -> dict[str, Any]:
    """Rates, attainment, accuracy and cost between two statuses, as plain data.

    Args:
        accuracy_percent: of variants, by id; the mean is of the queries that these served.

    Returns:
        Attainment is the share of the queries that ended in time among all that were served, served
        late or refused; None where there were none. Costs are of all devices present.
    """
    if after.get("began_s") != before.get("began_s"):
        before = {}  # the control loop began anew, and counts from zero
    seconds = after.get("up_s", 0.0) - before.get("up_s", 0.0)
    now, then = after.get("statistics", {}), before.get("statistics", {})
    tasks = {
        task: _attainment(ends, then.get("outcomes", {}).get(task, {}), seconds)
        for task, ends in sorted(now.get("outcomes", {}).items())
    }
    was = before.get("served_by_variant", {})
    served = {
        name: count - was.get(name, 0) for name, count in after.get("served_by_variant", {}).items()
    }
    known = {name: count for name, count in served.items() if count and name in accuracy_percent}
    weighted = sum(count * accuracy_percent[name] for name, count in known.items())
    members = after.get("members", [])
    cost_usd = now.get("device_cost_usd", 0.0) - then.get("device_cost_usd", 0.0)
    holders = Counter(variant for member in members for variant in member["loaded"])
    return {
        "url": after.get("url", ""),
        "seconds": seconds,
        "queries_per_s": sum(row["queries_per_s"] for row in tasks.values()),
        "queued": sum(member["queued"] for member in members if member["role"] == "gateway"),
        "mean_accuracy_percent": weighted / sum(known.values()) if known else None,
        "cost_usd_per_hour": cost_usd / seconds * 3600.0 if seconds > 0.0 else None,
        "tasks": tasks,
        "workers": [
            {
                name: member[name]
                for name in ("id", "role", "device_class", "queued", "loaded", "memory_bytes",
                             "memory_budget_bytes")
            }
            for member in members
        ],
        "variants": {
            name: {
                "loaded_in": holders[name],
                "queries_per_s": served.get(name, 0) / seconds if seconds > 0.0 else 0.0,
                "accuracy_percent": accuracy_percent.get(name),
            }
            for name in sorted({*holders, *(name for name, count in served.items() if count)})
        },
    }  # fmt: skip


def _attainment(
    ends: Mapping[str, int], before: Mapping[str, int], seconds: float
) -> dict[str, Any]:
    counts = {name: ends.get(name, 0) - before.get(name, 0) for name in _ENDS}
    total = sum(counts.values())
    return {
        **{name.replace("-", "_"): count for name, count in counts.items()},
        "queries_per_s": total / seconds if seconds > 0.0 else 0.0,
        "attainment_percent": 100.0 * counts["served"] / total if total else None,
    }


def _accuracies(found: Mapping[str, Any], home: Home) -> dict[str, float]:
    """The accuracies that variants count for, as far as the home's store knows them."""
    if not home_folder(home).exists():
        return {}
    with open_home(home) as registry:
        versions = registry.catalog().versions
    known = {name: variant.accuracy.percent for name, variant in versions.items()}
    demoted = {
        row["variant"]: row["demoted_to"]
        for row in found.get("feedback", [])
        if row["demoted_to"] is not None
    }
    return known | demoted
