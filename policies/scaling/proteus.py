"""Proteus: accuracy scaling by a mixed-integer program (Ahmad et al., ASPLOS 2024).

Each worker runs one variant. Which, and which share of each kind of queries it gets, is what
maximises the accuracy of all answers while demand is served; if it cannot be, less and less of it
is asked for. See ``proteus_program``. It plans shares: select with ``planned-shares``, and smooth
demand with the forecaster ``ewma``, as published.

Departures. The published artifact solves a bilinear program with Gurobi; here the same in a linear
form. A kind here is a scope and a minimum accuracy, where the paper's kind has no minimum. The
paper rounds throughput down to whole items a second, which would make nothing of slow models. How
much can be served at all is one program more instead of up to seventeen attempts. What the program
leaves open is settled: idle workers repeat what is busiest, and what a variant serves on several
device classes is divided by throughput. A policy says how many workers hold a variant, not which:
the core places them, and unloads what is no longer wanted only when memory is short. HiGHS takes no
first guess through SciPy, so a plan is kept while it holds rather than solved for again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, nan

import numpy as np

from modelless.policies.reasons import Reason
from modelless.policies.scaling.demand_mix import DemandKind
from modelless.policies.scaling.proteus_program import ProteusProgram, Solution
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
from modelless.variants.errors import InvalidInputError
from modelless.variants.vocabulary import Placement

BETAS = tuple(round(1.05 - 0.05 * step, 2) for step in range(18))
"""Shares of demand to be served, as the paper tries them: 1.05, 1.0, ... 0.2."""

_PROGRAMS = 3  # solved at most for one plan
_CHUNKS = 16  # of a device class's workers: the greedy plan moves one at a time
_MOST_SWAPS = 32
_MOST_SWAP_ROWS = 500  # looked at at a time; with more options, the plan stays as it is


class Proteus(ReplanningPolicy):
    """One variant a worker, for the most accuracy that demand leaves room for.

    Args:
        interval_s: seconds between plans.
        change: plans anew at once if demand has changed by more than this share.
        time_limit_s: for the solver, seconds a plan; 0: always the greedy plan. What is found by
            then is used, so that on a slow machine the plan may be another.
        gap: the solver stops when its plan is proven this close to the best, as a share.
        batch_sizes: that workers run; a variant gets the largest that takes less than half the
            time limit.

    Attributes:
        last_gap: how far the last plan may be from the best, as a share; NaN if nobody knows.
        last_beta: share of demand that the last plan had to serve; NaN after a greedy plan.
    """

    def __init__(
        self,
        interval_s: float = 10.0,
        change: float = 0.3,
        time_limit_s: float = 1.0,
        gap: float = 1e-4,
        batch_sizes: Sequence[int] = (1, 2, 4, 8),
    ) -> None:
        super().__init__(interval_s, change)
        if not 0.0 <= time_limit_s < inf:
            raise InvalidInputError.of("time_limit_s", time_limit_s, "0 or more seconds")
        if not 0.0 <= gap < 1.0:
            raise InvalidInputError.of("gap", gap, "0 up to, not including, 1")
        self.time_limit_s = time_limit_s
        self.gap = gap
        self.batch_sizes = check_batch_sizes(batch_sizes)
        self.last_gap = nan
        self.last_beta = nan
        self._held: dict[Placement, int] = {}  # workers by what they were last set to

    def _plan(
        self, view: ClusterView, workers: Mapping[str, int], kinds: Sequence[DemandKind]
    ) -> Targets:
        options = worker_options(view, workers, kinds, self.batch_sizes)
        served = frozenset[int]().union(*(option.kinds for option in options))
        if len(served) < len(kinds):  # what nothing can serve is no reason to serve nothing
            kinds = [kinds[k] for k in sorted(served)]
            options = worker_options(view, workers, kinds, self.batch_sizes)
        self.last_gap = self.last_beta = nan
        if not options:
            return Targets({}, {}, Reason.FALLBACK)
        solution = self._optimise(kinds, options, workers)
        reason = Reason.OPTIMISED
        if solution is None:
            solution, reason = self._fall_back(kinds, options, workers), Reason.FALLBACK
        else:
            self.last_gap = solution.gap
        counts = _employ_spare(options, solution, workers)
        flows = _balanced(options, counts, solution.flows)
        self._held = {
            option.placement: count
            for option, count in zip(options, counts, strict=True)
            if count > 0
        }
        return Targets(
            instances_of(options, counts, flows), {}, reason, shares_of(kinds, options, flows)
        )

    def _optimise(
        self,
        kinds: Sequence[DemandKind],
        options: Sequence[WorkerOption],
        workers: Mapping[str, int],
    ) -> Solution | None:
        """The most accurate plan at the first beta that can be met; None if none is found."""
        limit_s = self.time_limit_s / _PROGRAMS
        if limit_s == 0.0:
            return None
        program = ProteusProgram(kinds, options, workers)
        solution = program.most_accurate(BETAS[0], limit_s, self.gap)
        self.last_beta = BETAS[0]
        if solution is None:
            most = program.most_served(limit_s, self.gap)
            met = [beta for beta in BETAS[1:] if most is not None and beta <= most.served + 1e-6]
            self.last_beta = met[0] if met else nan
            solution = program.most_accurate(met[0], limit_s, self.gap) if met else None
        if solution is None:
            self.last_beta = nan
        return solution

    def _fall_back(
        self,
        kinds: Sequence[DemandKind],
        options: Sequence[WorkerOption],
        workers: Mapping[str, int],
    ) -> Solution:
        """The better of a greedy plan and the plan there is, where it still fits."""
        greedy = _greedy(kinds, options, workers)
        held = np.array([float(self._held.get(o.placement, 0)) for o in options])
        used = Counter[str]()
        for option, count in zip(options, held.tolist(), strict=True):
            used[option.placement.device_class] += round(count)
        fits = all(used[name] <= workers[name] for name in workers)
        plans = np.stack([greedy, held if fits else greedy])
        value = worth(*served_and_accuracy(kinds, options, plans))
        best = plans[int(value.argmax())]
        flows = {(k, o): float(given[0]) for k, o, given in fill(kinds, options, best[None, :])}
        counts = tuple(round(count) for count in best.tolist())
        return Solution(counts, flows, float(value.max()), nan)


def _greedy(
    kinds: Sequence[DemandKind], options: Sequence[WorkerOption], workers: Mapping[str, int]
) -> FloatArray:
    """Workers by option: add what helps most until none is left, then swap while that helps."""
    classes = [option.placement.device_class for option in options]
    chunk = {name: max(1, count // _CHUNKS) for name, count in workers.items()}
    free = dict(workers)
    counts = np.zeros(len(options))
    best = -inf
    while True:
        open_ = [o for o, name in enumerate(classes) if free[name] > 0]
        if not open_:
            break
        plans = np.repeat(counts[None, :], len(open_), axis=0)
        for row, option in enumerate(open_):
            plans[row, option] += min(chunk[classes[option]], free[classes[option]])
        value = worth(*served_and_accuracy(kinds, options, plans))
        row = int(value.argmax())
        if not value[row] > best + 1e-9:
            break
        best = float(value[row])
        free[classes[open_[row]]] -= round(float((plans[row] - counts).sum()))
        counts = plans[row]
    for _ in range(_MOST_SWAPS):
        swaps = [
            (out, into)
            for out in np.flatnonzero(counts).tolist()
            for into, name in enumerate(classes)
            if name == classes[out] and into != out
        ]
        if not 0 < len(swaps) <= _MOST_SWAP_ROWS:
            break
        plans = np.repeat(counts[None, :], len(swaps), axis=0)
        for row, (out, into) in enumerate(swaps):
            moved = min(float(chunk[classes[out]]), counts[out])
            plans[row, out] -= moved
            plans[row, into] += moved
        value = worth(*served_and_accuracy(kinds, options, plans))
        row = int(value.argmax())
        if not value[row] > best + 1e-9:
            break
        best, counts = float(value[row]), plans[row]
    return counts


def _employ_spare(
    options: Sequence[WorkerOption], solution: Solution, workers: Mapping[str, int]
) -> list[int]:
    """The plan's counts, and each idle worker one more of what is busiest and can run there."""
    counts = list(solution.counts)
    variants = [option.placement.variant_id for option in options]
    sent: dict[str, float] = {}
    capacity: dict[str, float] = {}
    for (_, sent_to), flow in solution.flows.items():
        sent[variants[sent_to]] = sent.get(variants[sent_to], 0.0) + flow
    for variant, count, option in zip(variants, counts, options, strict=True):
        capacity[variant] = capacity.get(variant, 0.0) + count * option.items_per_s
    for name, count in workers.items():
        of_class = [o for o, option in enumerate(options) if option.placement.device_class == name]
        able = [o for o in of_class if sent.get(variants[o], 0.0) > 0.0 < capacity[variants[o]]]
        if not able:
            continue
        for _ in range(count - sum(counts[o] for o in of_class)):
            busiest = max(able, key=lambda o: (sent[variants[o]] / capacity[variants[o]], -o))
            counts[busiest] += 1
            capacity[variants[busiest]] += options[busiest].items_per_s
    return counts


def _balanced(
    options: Sequence[WorkerOption],
    counts: Sequence[int],
    flows: Mapping[tuple[int, int], float],
) -> dict[tuple[int, int], float]:
    """The flows of a variant divided by throughput between the device classes that run it.

    As accurate, and no worker is beyond its capacity that was not before.
    """
    groups: dict[tuple[str, frozenset[int]], list[int]] = {}
    for number, option in enumerate(options):
        if counts[number] > 0:
            groups.setdefault((option.placement.variant_id, option.kinds), []).append(number)
    balanced: dict[tuple[int, int], float] = {}
    for (kind, sent_to), flow in sorted(flows.items()):
        option = options[sent_to]
        group = groups.get((option.placement.variant_id, option.kinds), [sent_to])
        able = sum(counts[o] * options[o].items_per_s for o in group)
        for o in group:
            part = counts[o] * options[o].items_per_s / able if able else 1.0
            balanced[kind, o] = balanced.get((kind, o), 0.0) + flow * part
    return balanced
