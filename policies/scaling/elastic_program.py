"""The best workers for a demand: how many of each pool and of which size, as one integer program.

What is gained is answers in time, and accuracy; what is paid is rent, and what a move costs. How
queries are shared among placements is part of the program, so that a cheaper variant, a larger
worker and one worker more compete on the same terms, as in Proteus (Ahmad et al., ASPLOS 2024),
here with workers of several sizes that may become one another. Where the search ends before it has
proven anything, a greedy plan is worked out as well (``elastic_greedy``), and the better of the two
by the program's own objective is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan

import numpy as np

from modelless.policies.plan_quality import PlanQuality, PlanSource
from modelless.policies.scaling.demand_value.offer import Offer
from modelless.policies.scaling.elastic_greedy import greedy_counts
from modelless.policies.scaling.elastic_terms import Prices, Terms
from modelless.policies.scaling.mixed_integer import Effort, Found, Program
from modelless.policies.views import FloatArray, Pool, WorkerState
from modelless.variants.vocabulary import DeviceClass

_MOST_KINDS = 64

Plan = Counter[tuple[str, str]]
"""Workers by pool and size."""


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
    effort: Effort,
) -> tuple[Plan, PlanQuality] | None:
    """The plan that earns most of what is found, and how good it is; None if there is none.

    Args:
        rate_per_s: shape (k,), queries a second of each kind.
        time_s: shape (k, p), device time of a query; inf where the placement must not serve it.
        offer: the placements.
        pools: what may be changed.
        present: the workers as they are.
        classes: device classes by name.
        utilisation: the share of a worker's time that is planned with.
        prices: what things are worth.
        effort: how long to search.
    """
    terms = Terms(rate_per_s, time_s, offer, pools, present, classes, utilisation, prices)
    program = program_of(terms)
    found, source = program.best(effort), PlanSource.PROGRAM
    by_clock = found.by_clock
    quality = PlanQuality(source, _gap(found, found.bound), by_clock)
    if found.is_impossible:
        return None
    if found.values is None or not quality.is_proven:
        greedy = greedy_counts(terms)
        known = program.worth_of(greedy, effort.time_limit_s) if greedy is not None else Found(None)
        if greedy is not None and (found.values is None or known.worth > found.worth):
            bound = max(found.bound, known.worth)
            quality = PlanQuality(PlanSource.GREEDY, _gap(known, bound), by_clock)
            return _plan_of(terms, greedy), quality
    if found.values is None:
        return None
    return _plan_of(terms, found.values[: len(terms.slots)]), quality


def _gap(found: Found, bound: float) -> float:
    if not (isfinite(bound) and isfinite(found.worth)):
        return nan
    return (bound - found.worth) / max(abs(found.worth), 1e-9)


def _plan_of(terms: Terms, counts: FloatArray) -> Plan:
    return Counter(
        {
            (pool.name, size): round(count)
            for (pool, size), count in zip(terms.slots, counts.tolist(), strict=True)
        }
    )


def program_of(terms: Terms) -> Program:
    """What is earned, and the bounds.

    Columns: workers by slot, queries a second by flow, resized or started by slot, by pool.
    """
    counts, flows = len(terms.slots), len(terms.kinds)
    moved, started = counts + flows, 2 * counts + flows
    gain = np.concatenate(
        (-terms.rent_usd, terms.worth_usd[terms.placed], -terms.resize_usd, -terms.start_usd)
    )
    scale = max(float(np.abs(gain).max(initial=0.0)), 1e-12)  # the solver's tolerances are absolute
    program = Program(gain / scale, counts, np.full(len(gain), inf))
    of_kind: list[dict[int, float]] = [{} for _ in terms.rate_per_s]
    of_class: list[dict[int, float]] = [{} for _ in terms.offer.classes]
    pairs = zip(terms.kinds.tolist(), terms.placed.tolist(), strict=True)
    for column, (kind, placed) in enumerate(pairs, start=counts):
        of_kind[kind][column] = 1.0
        of_class[int(terms.offer.class_of[placed])][column] = float(terms.time_s[kind, placed])
    for kind, columns in enumerate(of_kind):
        program.add(columns, -inf, float(terms.rate_per_s[kind]))
    for number, columns in enumerate(of_class):
        mine = np.flatnonzero(terms.class_of_slot == number).tolist()
        given = dict.fromkeys(mine, -terms.utilisation)
        program.add({**columns, **given}, -inf, terms.utilisation * terms.elsewhere[number])
    for slot, there in enumerate(terms.there):
        program.add({slot: 1.0, moved + slot: -1.0}, -inf, there)
    for number in range(len(terms.pools)):
        mine = np.flatnonzero(terms.pool_of_slot == number).tolist()
        present = terms.pool_there[number]
        program.add(dict.fromkeys(mine, 1.0), terms.least[number], terms.most[number])
        program.add({**dict.fromkeys(mine, 1.0), started + number: -1.0}, -inf, present)
        if isfinite(terms.most_cores[number]):
            cores = {slot: float(terms.cores[slot]) for slot in mine}
            program.add(cores, -inf, terms.most_cores[number])
    return program
