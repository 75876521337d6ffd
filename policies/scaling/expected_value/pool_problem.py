"""The planning problem of ``PoolSizes``: the costs and gains of workers as columns.

The integer program and the greedy planner share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from modelless.policies.scaling.expected_value.offer import Offer
from modelless.policies.views import FloatArray, Pool
from modelless.variants.vocabulary import DeviceClass

_RESIZE_S = 1.0  # seconds of rent that a resize costs, far less than a start


class Prices(NamedTuple):
    """The values of answers, US dollars.

    Attributes:
        query_usd: value of an answer in time.
        accuracy_usd: additional value of a perfectly accurate answer.
        horizon_s: time within which a move must pay, seconds.
    """

    query_usd: float
    accuracy_usd: float
    horizon_s: float


class PoolProblem:
    """A demand, and the workers that could serve it. A *slot* is a pool's worker of one size.

    Args:
        rate_per_s: queries a second of each kind, shape (k,).
        time_s: device time of a query, shape (k, p); inf where the placement must not serve it.
        offer: placements.
        pools: pools and their bounds.
        present: current workers by pool and size.
        classes: device classes by name.
        utilisation: share of a worker's time to plan with.
        prices: values of answers.

    Attributes:
        kinds, placed: kind and placement of each flow, which is a pair that may serve.
        worth_usd: worth of a query that the placement answers, shape (p,).
        slots: pools and sizes; the columns by slot are the pool's number ``pool_of_slot``, the
            number of the device class ``class_of_slot`` (-1 if nothing is offered on it), workers
            ``there``, ``cores`` of one, its ``rent_usd`` a second, and ``resize_usd``.
        pool_there: workers by pool; ``least``, ``most`` and ``most_cores`` are its bounds;
            ``start_usd`` is the cost of one more worker, spread over the horizon.
        elsewhere: workers outside the pools, by device class.
    """

    def __init__(
        self,
        rate_per_s: FloatArray,
        time_s: FloatArray,
        offer: Offer,
        pools: Sequence[Pool],
        present: Mapping[tuple[str, str], int],
        classes: Mapping[str, DeviceClass],
        utilisation: float,
        prices: Prices,
    ) -> None:
        self.rate_per_s, self.time_s, self.offer = rate_per_s, time_s, offer
        self.pools, self.utilisation = pools, utilisation
        self.kinds, self.placed = np.nonzero(np.isfinite(time_s))
        self.worth_usd = prices.query_usd + prices.accuracy_usd * offer.accuracy
        self.slots = [(pool, size) for pool in pools for size in pool.sizes if size in classes]
        sizes = [size for _, size in self.slots]
        numbers = {name: number for number, name in enumerate(offer.classes)}
        self.class_of_slot = np.array([numbers.get(size, -1) for size in sizes], dtype=np.intp)
        self.pool_of_slot = np.array(
            [number for number, pool in enumerate(pools) for size in pool.sizes if size in classes],
            dtype=np.intp,
        )
        self.there = [float(present.get((pool.name, size), 0)) for pool, size in self.slots]
        self.cores = np.array([classes[size].threads for size in sizes], dtype=np.float64)
        self.rent_usd = np.array([classes[size].cost_usd(1.0) for size in sizes], dtype=np.float64)
        self.resize_usd = self.rent_usd * _RESIZE_S / prices.horizon_s
        self.pool_there = [
            float(sum(count for (name, _), count in present.items() if name == pool.name))
            for pool in pools
        ]
        scaled = [pool.name in classes for pool in pools]
        fixed = list(zip(pools, self.pool_there, scaled, strict=True))
        self.least = [float(pool.min_workers) if may else there for pool, there, may in fixed]
        self.most = [float(pool.max_workers) if may else there for pool, there, may in fixed]
        self.most_cores = [inf if p.max_cores is None else float(p.max_cores) for p in pools]
        self.start_usd = np.array(
            [
                classes[pool.name].cost_usd(pool.start_s) / prices.horizon_s if may else 0.0
                for pool, _, may in fixed
            ],
            dtype=np.float64,
        )
        pooled = {pool.name for pool in pools}
        self.elsewhere = [
            float(sum(n for (pool, size), n in present.items() if size == c and pool not in pooled))
            for c in offer.classes
        ]
