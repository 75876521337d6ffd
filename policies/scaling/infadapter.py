"""InfAdapter: chooses sets of variants, including the cost of a change.

Salmani et al., EuroMLSys 2023.

For each scope the set of variants and the number of workers of each that maximise

    accuracy - cost_weight x cost / most cost - reload_weight x load time / longest load time

while demand is served: accuracy is that of the mean answer, cost that of the workers used, and load
time that of the slowest variant that is not loaded yet. The paper finds the best by trying all, and
so does this, for small sets. Quotas are shares of the queries: select with ``planned-shares``.

Departures. The paper gives one service CPU cores of one node. Here an option is a whole worker of a
device class at that class's price, which for equal workers is the same. The paper has one service.
Here workers are divided between scopes by the device time that their demand takes at its cheapest,
and the workers that a scope does not use are offered to the others, the worst off first. Variants
run batches, as in Proteus; the paper's run single queries. Where demand cannot be served, as much
as possible is served. The paper forecasts by an LSTM, this control plane by its forecaster, and
capacity is planned with some headroom (ours). All plans are compared where they are few; otherwise
the search uses coarser steps and smaller sets, limited by count and not by the clock, so that the
same demand gives the same plan on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.demand_mix import DemandKind
from modelless.policies.scaling.replanning import ReplanningPolicy
from modelless.policies.scaling.worker_options import (
    WorkerOption,
    check_batch_sizes,
    fill,
    instances_of,
    served_and_accuracy,
    shares_of,
    worker_options,
    worth,
)
from modelless.policies.views import ClusterView, FloatArray, Targets
from modelless.variants.vocabulary import Placement

_MOST_PLANS = 100_000  # most plans compared for all scopes; more are compared in coarser steps
_PLANS_A_SET = 8  # fewer plans for a set call for smaller sets


class _Choice(NamedTuple):
    """The best plan of a scope with the workers that it may use."""

    value: float
    counts: tuple[int, ...]


class InfAdapter(ReplanningPolicy):
    """Accuracy less the cost of workers and of loading, by search over small sets of variants.

    Args:
        interval_s: seconds between plans.
        change: plans anew at once if demand has changed by more than this share.
        cost_weight: weight of the cost of using all workers, in accuracy from 0 to 1.
        reload_weight: weight of waiting for the longest load, in accuracy from 0 to 1.
        headroom: planned capacity over expected demand.
        most_variants: most variants in the set of a scope.
        batch_sizes: allowed batch sizes; a variant gets the largest that takes less than half the
            time limit.
    """

    def __init__(
        self,
        interval_s: float = 30.0,
        change: float = 0.3,
        cost_weight: float = 0.05,
        reload_weight: float = 0.02,
        headroom: float = 1.1,
        most_variants: int = 3,
        batch_sizes: Sequence[int] = (1, 2, 4, 8),
    ) -> None:
        super().__init__(interval_s, change)
        for name, weight in (("cost_weight", cost_weight), ("reload_weight", reload_weight)):
            if not 0.0 <= weight < inf:
                raise InvalidInputError.of(name, weight, "0 or more")
        if not 1.0 <= headroom < inf:
            raise InvalidInputError.of("headroom", headroom, "1 or more")
        if type(most_variants) is not int or not 1 <= most_variants <= 5:
            raise InvalidInputError.of("most_variants", most_variants, "1 to 5")
        self.cost_weight = cost_weight
        self.reload_weight = reload_weight
        self.headroom = headroom
        self.most_variants = most_variants
        self.batch_sizes = check_batch_sizes(batch_sizes)

    def _plan(
        self, view: ClusterView, workers: Mapping[str, int], kinds: Sequence[DemandKind]
    ) -> Targets:
        scopes: list[_ScopeSearch] = []
        names = list(dict.fromkeys(kind.scope for kind in kinds))
        for scope in names:
            of_scope = [kind for kind in kinds if kind.scope == scope]
            options = worker_options(view, workers, of_scope, self.batch_sizes)
            if options:
                most_plans = _MOST_PLANS // len(names)
                scopes.append(_ScopeSearch(self, view, workers, of_scope, options, most_plans))
        budgets = _divide(workers, scopes)
        choices = [search.best(budget) for search, budget in zip(scopes, budgets, strict=True)]
        left = dict(workers)
        for search, choice in zip(scopes, choices, strict=True):
            for name, count in search.used(choice).items():
                left[name] -= count
        for number in sorted(range(len(scopes)), key=lambda n: (choices[n].value, n)):
            search, used = scopes[number], scopes[number].used(choices[number])
            offered = {name: left[name] + used.get(name, 0) for name in workers}
            choices[number] = max(search.best(offered), choices[number])
            used = search.used(choices[number])
            left = {name: offered[name] - used.get(name, 0) for name in workers}
        instances: dict[Placement, int] = {}
        shares: dict[str, dict[Placement, float]] = {}
        for search, choice in zip(scopes, choices, strict=True):
            flows = search.flows(choice)
            shares.update(shares_of(search.kinds, search.options, flows))
            for placement, count in instances_of(search.options, choice.counts, flows).items():
                instances[placement] = instances.get(placement, 0) + count
        return Targets(instances, {}, Reason.OPTIMISED, shares)


class _ScopeSearch:
    """The search for one scope.

    Args:
        policy: the policy, for its weights.
        view, workers: the cluster.
        kinds: demand of the scope.
        options: options of workers, at least one.
        most_plans: most plans to compare.
    """

    def __init__(
        self,
        policy: InfAdapter,
        view: ClusterView,
        workers: Mapping[str, int],
        kinds: Sequence[DemandKind],
        options: Sequence[WorkerOption],
        most_plans: int,
    ) -> None:
        self.kinds = [
            replace(kind, items_per_s=kind.items_per_s * policy.headroom) for kind in kinds
        ]
        self.options = options
        self._policy = policy
        self._most_plans = most_plans
        self._classes = [option.placement.device_class for option in options]
        prices = {
            name: known.price_usd_per_hour
            for name in workers
            if (known := view.device_classes.get(name)) is not None
        }
        if not any(prices.get(name, 0.0) > 0.0 for name in workers):
            prices = dict.fromkeys(workers, 1.0)
        most = sum(prices.get(name, 0.0) * count for name, count in workers.items())
        self._cost = np.array([prices.get(name, 0.0) / most for name in self._classes])
        loaded = view.count_instances()
        self._loaded = np.array([float(loaded[option.placement]) for option in options])
        longest = max(option.load_s for option in options)
        self._load = np.array([option.load_s / longest if longest else 0.0 for option in options])

    def least_workers(self) -> dict[str, float]:
        """Returns how many workers of each device class would serve all demand at best."""
        demand = sum(kind.items_per_s for kind in self.kinds)
        quickest: dict[str, float] = {}
        for option, name in zip(self.options, self._classes, strict=True):
            quickest[name] = max(quickest.get(name, 0.0), option.items_per_s)
        return {name: demand / items_per_s for name, items_per_s in quickest.items()}

    def best(self, budget: Mapping[str, int]) -> _Choice:
        """Returns the best plan within ``budget`` workers by device class; ties go to the first."""
        usable = [o for o, name in enumerate(self._classes) if budget.get(name, 0) > 0]
        sets: list[tuple[int, ...]] = []
        for size in range(1, self._policy.most_variants + 1):
            if size > 1 and len(sets) + comb(len(usable), size) > self._most_plans // _PLANS_A_SET:
                break
            sets += combinations(usable, size)
        if not sets:
            return _Choice(-inf, (0,) * len(self.options))
        plans = self._plans(sets, budget)
        value = self._value(plans)
        row = int(value.argmax())
        return _Choice(float(value[row]), tuple(round(count) for count in plans[row].tolist()))

    def used(self, choice: _Choice) -> dict[str, int]:
        """Returns the workers by device class."""
        used: dict[str, int] = {}
        for name, count in zip(self._classes, choice.counts, strict=True):
            used[name] = used.get(name, 0) + count
        return used

    def flows(self, choice: _Choice) -> dict[tuple[int, int], float]:
        """Returns items a second by kind and option."""
        counts = np.array([choice.counts], dtype=np.float64)
        return {(k, o): float(given[0]) for k, o, given in fill(self.kinds, self.options, counts)}

    def _plans(self, sets: Sequence[Sequence[int]], budget: Mapping[str, int]) -> FloatArray:
        """Returns all counts within budget of options that make a set, one or more of each.

        Returns:
            Workers by plan and option, shape (plans, options).
        """
        most = self._most_plans // len(sets)
        grids: dict[tuple[str, ...], NDArray[np.intp]] = {}
        counts = []
        for chosen in sets:
            classes = tuple(self._classes[option] for option in chosen)
            if classes not in grids:
                grids[classes] = _counts(classes, budget, most)
            counts.append(grids[classes])
        plans = np.zeros((sum(map(len, counts)), len(self.options)))
        row = 0
        for chosen, grid in zip(sets, counts, strict=True):
            plans[row : row + len(grid), chosen] = grid
            row += len(grid)
        return plans

    def _value(self, plans: FloatArray) -> FloatArray:
        served, accuracy = served_and_accuracy(self.kinds, self.options, plans)
        reload = np.where(plans > self._loaded, self._load, 0.0).max(axis=1)
        objective = (
            accuracy
            - self._policy.cost_weight * (plans @ self._cost)
            - self._policy.reload_weight * reload
        )
        return worth(served, objective)


def _counts(classes: Sequence[str], budget: Mapping[str, int], most: int) -> NDArray[np.intp]:
    """Returns the ways to set workers to options of these device classes, one or more to each.

    It uses steps of several workers where there would be more than ``most`` ways otherwise.

    Returns:
        Shape (ways, options); no ways if there are fewer workers than options.
    """
    finest = max(int(most ** (1.0 / len(classes))), 1)
    steps = [
        sorted({-(-budget[name] * step // finest) for step in range(1, finest + 1)})
        for name in classes
    ]
    ways = np.stack(np.meshgrid(*steps, indexing="ij"), axis=-1).reshape(-1, len(classes))
    for name in set(classes):
        columns = [column for column, other in enumerate(classes) if other == name]
        ways = ways[ways[:, columns].sum(axis=1) <= budget[name]]
    return ways


def _divide(workers: Mapping[str, int], scopes: Sequence[_ScopeSearch]) -> list[dict[str, int]]:
    """Returns workers by scope, in proportion to the least need; remainders go to the largest."""
    budgets: list[dict[str, int]] = [{} for _ in scopes]
    for name, count in workers.items():
        needs = [search.least_workers().get(name, 0.0) for search in scopes]
        total = sum(needs)
        if not total > 0.0:
            continue
        exact = [count * need / total for need in needs]
        for budget, part in zip(budgets, exact, strict=True):
            budget[name] = int(part)
        spare = count - sum(budget[name] for budget in budgets)
        by_remainder = sorted(range(len(scopes)), key=lambda n: (int(exact[n]) - exact[n], n))
        for number in by_remainder[:spare]:
            budgets[number][name] += 1
    return budgets
