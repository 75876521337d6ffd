"""The best workers for a demand: how many of each pool and of which size, as one integer program.

What is gained is answers in time, and accuracy; what is paid is rent, and what a move costs. How
queries are shared among placements is part of the program, so that a cheaper variant, a larger
worker and one worker more compete on the same terms, as in Proteus (Ahmad et al., ASPLOS 2024),
here with workers of several sizes that may become one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from modelless.policies.scaling.demand_value_offer import Offer
from modelless.policies.views import FloatArray, Pool, WorkerState
from modelless.variants.vocabulary import DeviceClass

_MOST_KINDS = 64
_TIME_LIMIT_S = 0.5
_RESIZE_S = 1.0  # of rent: a resize is not for nothing, but far cheaper than a start

Plan = Counter[tuple[str, str]]
"""Workers by pool and size."""


class Prices(NamedTuple):
    """What things are worth, US dollars.

    Attributes:
        query_usd: of an answer in time.
        accuracy_usd: what a perfectly accurate one is worth besides.
        horizon_s: the time in which a move has to pay.
    """

    query_usd: float
    accuracy_usd: float
    horizon_s: float


def present_plan(workers: Sequence[WorkerState]) -> Plan:
    """The workers as they are, or are about to be."""
    return Counter((worker.pool, worker.size) for worker in workers)


def rent_usd_per_s(plan: Plan, classes: Mapping[str, DeviceClass]) -> float:
    """What the workers of a plan cost."""
    return sum(classes[size].cost_usd(1.0) * n for (_, size), n in plan.items() if size in classes)


def merged(rate_per_s: FloatArray, time_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Kinds that the same placements serve alike, as one; of very many the largest, scaled up.

    Args:
        rate_per_s: shape (k,).
        time_s: shape (k, p), device time of a query; inf where the placement must not serve it.
    """
    rows, number = np.unique(time_s, axis=0, return_inverse=True)
    rates = np.bincount(number.reshape(-1), weights=rate_per_s, minlength=len(rows))
    kept = np.argsort(-rates, kind="stable")[:_MOST_KINDS]
    return rates[kept] * (rates.sum() / rates[kept].sum()), rows[kept]


def best_plan(
    rate_per_s: FloatArray,
    time_s: FloatArray,
    offer: Offer,
    pools: Sequence[Pool],
    present: Plan,
    classes: Mapping[str, DeviceClass],
    utilisation: float,
    prices: Prices,
) -> Plan | None:
    """The plan that earns most; None if the solver found none in time.

    Args:
        rate_per_s: shape (k,), queries a second of each kind.
        time_s: shape (k, p), device time of a query; inf where the placement must not serve it.
        offer: the placements.
        pools: what may be changed.
        present: the workers as they are.
        classes: device classes by name.
        utilisation: the share of a worker's time that is planned with.
        prices: what things are worth.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a while to import

    kinds, placed = np.nonzero(np.isfinite(time_s))
    slots = [(pool, size) for pool in pools for size in pool.sizes if size in classes]
    flows, counts = len(kinds), len(slots)
    # Columns: queries a second by flow, workers by slot, resized or started by slot, by pool.
    width = flows + 2 * counts + len(pools)
    cost = np.zeros(width)
    cost[:flows] = -(prices.query_usd + prices.accuracy_usd * offer.accuracy[placed])
    rows: list[FloatArray] = []
    low: list[float] = []
    high: list[float] = []

    def bound(row: FloatArray, least: float, most: float) -> None:
        rows.append(row)
        low.append(least)
        high.append(most)

    for kind in range(len(rate_per_s)):
        row = np.zeros(width)
        row[:flows][kinds == kind] = 1.0
        bound(row, -inf, float(rate_per_s[kind]))
    pooled = {pool.name for pool in pools}
    for number, name in enumerate(offer.classes):
        row = np.zeros(width)
        mine = offer.class_of[placed] == number
        row[:flows][mine] = time_s[kinds[mine], placed[mine]]
        for slot, (_, size) in enumerate(slots):
            row[flows + slot] = -utilisation * (size == name)
        elsewhere = sum(
            n for (pool, size), n in present.items() if size == name and pool not in pooled
        )
        bound(row, -inf, utilisation * elsewhere)
    for slot, (pool, size) in enumerate(slots):
        rent = classes[size].cost_usd(1.0)
        cost[flows + slot] = rent
        cost[flows + counts + slot] = rent * _RESIZE_S / prices.horizon_s
        row = np.zeros(width)
        row[flows + slot], row[flows + counts + slot] = 1.0, -1.0
        bound(row, -inf, float(present[pool.name, size]))
    for number, pool in enumerate(pools):
        mine = np.array([owner is pool for owner, _ in slots])
        there = sum(n for (name, _), n in present.items() if name == pool.name)
        row = np.zeros(width)
        row[flows : flows + counts] = mine
        if pool.name in classes:
            bound(row, float(pool.min_workers), float(pool.max_workers))
            start_usd = classes[pool.name].cost_usd(pool.start_s)
            cost[flows + 2 * counts + number] = start_usd / prices.horizon_s
        else:
            bound(row, float(there), float(there))
        row = row.copy()
        row[flows + 2 * counts + number] = -1.0
        bound(row, -inf, float(there))
        if pool.max_cores is not None:
            row = np.zeros(width)
            row[flows : flows + counts] = mine * [classes[size].threads for _, size in slots]
            bound(row, -inf, float(pool.max_cores))
    integral = np.zeros(width)
    integral[flows : flows + counts] = 1
    scale = max(float(np.abs(cost).max(initial=0.0)), 1e-12)  # the solver's tolerances are absolute
    result: Any = milp(
        cost / scale,
        integrality=integral,
        bounds=Bounds(0.0, np.inf),
        constraints=LinearConstraint(np.array(rows), low, high),
        options={"time_limit": _TIME_LIMIT_S, "mip_rel_gap": 1e-6},
    )
    if result.x is None:
        return None
    found = result.x[flows : flows + counts]
    return Counter(
        {(pool.name, size): round(n) for (pool, size), n in zip(slots, found, strict=True)}
    )
