"""The best workers for a demand, by number, pool and size: an integer program and a greedy plan.

The gain is answers in time and accuracy; the cost is rent and moves. The division of queries among
placements is part of the program, so a cheaper variant, a larger worker and one more worker compete
on equal terms, as in Proteus (Ahmad et al., ASPLOS 2024), here with workers of several sizes that
may change into each other. If the search ends without a proof, the greedy planner plans, too, and
the better plan by the program's own objective is used.

The greedy planner starts from the existing workers and takes the best step for as long as one
helps. A step adds, removes or resizes some workers. It gives their time to what earns most in it,
without a program, so the estimate of what they earn may be somewhat low.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan
from typing import NamedTuple

import numpy as np

from modelless.policies.plan_quality import PlanQuality, PlanSource
from modelless.policies.scaling.expected_value.offer import Offer
from modelless.policies.scaling.expected_value.pool_problem import PoolProblem, Prices
from modelless.policies.scaling.mixed_integer import MixedIntegerProgram, SolverLimits, SolverResult
from modelless.policies.views import FloatArray, Pool, WorkerState
from modelless.variants.vocabulary import DeviceClass

_MOST_KINDS = 64

Plan = Counter[tuple[str, str]]
"""The number of workers by pool and size."""


def present_plan(workers: Sequence[WorkerState]) -> Plan:
    """Returns the workers by pool and by the size that they have or change to."""
    return Counter((worker.pool, worker.size) for worker in workers)


def rent_usd_per_s(plan: Plan, classes: Mapping[str, DeviceClass]) -> float:
    """Returns the rent of a plan's workers, US dollars a second."""
    return sum(classes[size].cost_usd(1.0) * n for (_, size), n in plan.items() if size in classes)


def merged(rate_per_s: FloatArray, time_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns kinds that the same placements serve equally, merged; of very many the largest.

    The rates of the largest are scaled up to the total.

    Args:
        rate_per_s: queries a second of each kind, shape (k,).
        time_s: device time of a query, shape (k, p); inf where the placement must not serve it.
    """
    rows, number = np.unique(time_s, axis=0, return_inverse=True)
    rates = np.bincount(number.reshape(-1), weights=rate_per_s, minlength=len(rows))
    kept = np.argsort(-rates, kind="stable")[:_MOST_KINDS]
    most = rates[kept].sum()
    return rates[kept] * (rates.sum() / most if most > 0.0 else 1.0), rows[kept]


def best_plan(
    rate_per_s: FloatArray,
    time_s: FloatArray,
    offer: Offer,
    pools: Sequence[Pool],
    present: Plan,
    classes: Mapping[str, DeviceClass],
    utilisation: float,
    prices: Prices,
    limits: SolverLimits,
) -> tuple[Plan, PlanQuality] | None:
    """Returns the plan that earns most and its quality; None if there is no plan.

    Args:
        rate_per_s: queries a second of each kind, shape (k,).
        time_s: device time of a query, shape (k, p); inf where the placement must not serve it.
        offer: placements.
        pools: pools and their bounds.
        present: current workers.
        classes: device classes by name.
        utilisation: share of a worker's time to plan with.
        prices: values of answers.
        limits: limits of the search.
    """
    problem = PoolProblem(rate_per_s, time_s, offer, pools, present, classes, utilisation, prices)
    program = program_of(problem)
    found, source = program.maximise(limits), PlanSource.PROGRAM
    by_clock = found.by_clock
    quality = PlanQuality(source, _gap(found, found.bound), by_clock)
    if found.is_impossible:
        return None
    if found.values is None or not quality.is_proven:
        greedy = greedy_counts(problem)
        known = (
            program.evaluate_plan(greedy, limits.time_limit_s)
            if greedy is not None
            else SolverResult(None)
        )
        if greedy is not None and (found.values is None or known.worth > found.worth):
            bound = max(found.bound, known.worth)
            quality = PlanQuality(PlanSource.GREEDY, _gap(known, bound), by_clock)
            return _plan_of(problem, greedy), quality
    if found.values is None:
        return None
    return _plan_of(problem, found.values[: len(problem.slots)]), quality


def _gap(found: SolverResult, bound: float) -> float:
    if not (isfinite(bound) and isfinite(found.worth)):
        return nan
    return (bound - found.worth) / max(abs(found.worth), 1e-9)


def _plan_of(problem: PoolProblem, counts: FloatArray) -> Plan:
    return Counter(
        {
            (pool.name, size): round(count)
            for (pool, size), count in zip(problem.slots, counts.tolist(), strict=True)
        }
    )


def program_of(problem: PoolProblem) -> MixedIntegerProgram:
    """Returns the program of a problem.

    The columns are workers by slot, queries a second by flow, resized or started workers by slot,
    and started workers by pool.
    """
    counts, flows = len(problem.slots), len(problem.kinds)
    moved, started = counts + flows, 2 * counts + flows
    gain = np.concatenate(
        (
            -problem.rent_usd,
            problem.worth_usd[problem.placed],
            -problem.resize_usd,
            -problem.start_usd,
        )
    )
    scale = max(float(np.abs(gain).max(initial=0.0)), 1e-12)  # the solver's tolerances are absolute
    program = MixedIntegerProgram(gain / scale, counts, np.full(len(gain), inf))
    of_kind: list[dict[int, float]] = [{} for _ in problem.rate_per_s]
    of_class: list[dict[int, float]] = [{} for _ in problem.offer.classes]
    pairs = zip(problem.kinds.tolist(), problem.placed.tolist(), strict=True)
    for column, (kind, placed) in enumerate(pairs, start=counts):
        of_kind[kind][column] = 1.0
        of_class[int(problem.offer.class_of[placed])][column] = float(problem.time_s[kind, placed])
    for kind, columns in enumerate(of_kind):
        program.add(columns, -inf, float(problem.rate_per_s[kind]))
    for number, columns in enumerate(of_class):
        mine = np.flatnonzero(problem.class_of_slot == number).tolist()
        given = dict.fromkeys(mine, -problem.utilisation)
        program.add({**columns, **given}, -inf, problem.utilisation * problem.elsewhere[number])
    for slot, there in enumerate(problem.there):
        program.add({slot: 1.0, moved + slot: -1.0}, -inf, there)
    for number in range(len(problem.pools)):
        mine = np.flatnonzero(problem.pool_of_slot == number).tolist()
        present = problem.pool_there[number]
        program.add(dict.fromkeys(mine, 1.0), problem.least[number], problem.most[number])
        program.add({**dict.fromkeys(mine, 1.0), started + number: -1.0}, -inf, present)
        if isfinite(problem.most_cores[number]):
            cores = {slot: float(problem.cores[slot]) for slot in mine}
            program.add(cores, -inf, problem.most_cores[number])
    return program


_MOST_STEPS = 64
_MOST_AT_ONCE = 256


class _Pair(NamedTuple):
    """A kind on a device class, with the seconds and the worth of a query there."""

    kind: int
    number: int
    seconds: float
    usd: float

    @property
    def usd_per_s(self) -> float:
        return self.usd / self.seconds


def greedy_counts(problem: PoolProblem) -> FloatArray | None:
    """Returns the workers by slot; None if no plan found keeps the pools' bounds."""
    if not problem.slots:
        return np.zeros(0)
    orders = _orders(problem)
    steps = _steps(problem)
    counts = np.array(problem.there)
    best = float(_earned(problem, orders, counts[None, :])[0])
    for _ in range(_MOST_STEPS):
        plans = counts + steps
        plans = plans[(plans >= 0.0).all(axis=1)]
        if not len(plans):
            break
        earned = _earned(problem, orders, plans)
        row = int(earned.argmax())
        if not earned[row] > best + 1e-15:
            break
        best, counts = float(earned[row]), plans[row]
    return counts if not _broken(problem, counts[None, :])[0] else None


def _steps(problem: PoolProblem) -> FloatArray:
    """Returns the possible steps of a plan, shape (steps, slots)."""
    one = np.eye(len(problem.slots))
    moves = [sign * row for row in one for sign in (1.0, -1.0)]
    moves += [
        more * one[into] - fewer * one[out]
        for out in range(len(one))
        for into in range(len(one))
        if into != out
        for more, fewer in ((1.0, 1.0), (2.0, 1.0), (1.0, 2.0))
    ]
    sizes = [1 << power for power in range(_MOST_AT_ONCE.bit_length())]
    return np.array([size * move for size in sizes for move in moves])


def _orders(problem: PoolProblem) -> tuple[list[_Pair], ...]:
    """Returns the orders in which the workers' time is given away.

    The first order is by earnings a second; the second is the same with the kinds first that the
    fewest classes serve; the third is by earnings a query, then by the first order.
    """
    thrifty: dict[tuple[int, int], _Pair] = {}
    lavish: dict[tuple[int, int], _Pair] = {}
    for kind, placed in zip(problem.kinds.tolist(), problem.placed.tolist(), strict=True):
        key = kind, int(problem.offer.class_of[placed])
        seconds = max(float(problem.time_s[kind, placed]), 1e-12)
        pair = _Pair(*key, seconds, float(problem.worth_usd[placed]))
        thrifty[key] = max(thrifty.get(key, pair), pair, key=lambda each: each.usd_per_s)
        lavish[key] = max(lavish.get(key, pair), pair, key=lambda each: each.usd)
    by_worth = sorted(thrifty.values(), key=lambda pair: (-pair.usd_per_s, pair))
    by_query = sorted(lavish.values(), key=lambda pair: (-pair.usd, -pair.usd_per_s, pair))
    classes = Counter(pair.kind for pair in by_worth)
    by_need = sorted(by_worth, key=lambda pair: classes[pair.kind])
    return by_worth, by_need, by_query + by_worth


def _broken(problem: PoolProblem, plans: FloatArray) -> FloatArray:
    """Returns by how many workers and cores each plan breaks the pools' bounds, shape (plans,)."""
    broken = np.zeros(len(plans))
    for number in range(len(problem.pools)):
        mine = problem.pool_of_slot == number
        workers = plans[:, mine].sum(axis=1)
        broken += np.maximum(problem.least[number] - workers, 0.0)
        broken += np.maximum(workers - problem.most[number], 0.0)
        broken += np.maximum(plans[:, mine] @ problem.cores[mine] - problem.most_cores[number], 0.0)
    return broken


def _earned(
    problem: PoolProblem, orders: Sequence[Sequence[_Pair]], plans: FloatArray
) -> FloatArray:
    """Returns the earnings of each plan, US dollars a second, shape (plans,).

    Broken bounds make them very negative.
    """
    earned = -plans @ problem.rent_usd
    earned -= np.maximum(plans - problem.there, 0.0) @ problem.resize_usd
    for number, there in enumerate(problem.pool_there):
        workers = plans[:, problem.pool_of_slot == number].sum(axis=1)
        earned -= np.maximum(workers - there, 0.0) * problem.start_usd[number]
    earned += np.max([_served_usd(problem, order, plans) for order in orders], axis=0)
    most = float(problem.worth_usd.max(initial=0.0)) * float(np.sum(problem.rate_per_s))
    most += float((plans @ problem.rent_usd).max(initial=0.0))
    result: FloatArray = earned - _broken(problem, plans) * 1e3 * most
    return result


def _served_usd(problem: PoolProblem, order: Sequence[_Pair], plans: FloatArray) -> FloatArray:
    """Returns the worth of answers a second if the workers' time is given away in this order."""
    left = [
        problem.utilisation * (plans[:, problem.class_of_slot == number].sum(axis=1) + elsewhere)
        for number, elsewhere in enumerate(problem.elsewhere)
    ]
    waiting = np.repeat(np.asarray(problem.rate_per_s)[:, None], len(plans), axis=1)
    usd = np.zeros(len(plans))
    for kind, number, seconds, each_usd in order:
        served = np.minimum(waiting[kind], left[number] / seconds)
        waiting[kind] -= served
        left[number] = np.maximum(left[number] - served * seconds, 0.0)
        usd += served * each_usd
    return usd
