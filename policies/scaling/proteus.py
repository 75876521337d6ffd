"""Proteus: accuracy scaling by a mixed-integer program (Ahmad et al., ASPLOS 2024).

Each worker runs one variant. The program chooses the variants, and the share of each kind of
queries that each worker gets, to maximise the accuracy of all answers while demand is served; if it
cannot be served, it asks for less and less of it. See ``proteus_program``. It plans shares: as
published, use it with the selection ``planned-shares`` and the forecaster ``ewma``.

The policy first has a greedy plan and the previous plan. Then it searches the program for a better
one within its limits. It takes the best of the three by the program's own objective; of equal plans
the one of the search, which is for the current demand. The plan's distance from the best, as far as
it is known, comes with it (``Targets.quality``).

Departures. The published artifact solves a bilinear program with Gurobi; here the same program has
a linear form. A kind here is a scope and a minimum accuracy; the paper's kind has no minimum. The
paper rounds throughput down to whole items a second, which would exclude slow models. One more
program finds how much can be served at all, in place of up to seventeen attempts. Idle workers,
which the program leaves open, repeat the busiest variant, and the load of a variant on several
device classes is divided by throughput. A policy says how many workers hold a variant, not which:
the core places them, and unloads unwanted ones only when memory is short. A new plan is made not
only at intervals, but also when demand, workers or variants have changed much. The last plan and
the greedy one replace a warm start, which HiGHS does not take through SciPy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, nan

import numpy as np

from modelless.policies.plan_quality import PlanQuality, PlanSource
from modelless.policies.reasons import Reason
from modelless.policies.scaling.demand_mix import DemandKind
from modelless.policies.scaling.mixed_integer import SolverLimits
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
from modelless.variants.vocabulary import Placement

BETAS = tuple(round(1.05 - 0.05 * step, 2) for step in range(18))
"""The shares of demand that the paper tries to serve: 1.05, 1.0, ... 0.2."""

_EQUAL = 1e-9  # plans that differ by less than this share are worth the same

_Answer = tuple[Solution, PlanQuality]
_Known = Sequence[tuple[PlanSource, FloatArray]]


class Proteus(ReplanningPolicy):
    """Gives each worker one variant, for the most accuracy while demand is served.

    Args:
        interval_s: seconds between plans.
        change: plans anew at once if demand has changed by more than this share.
        node_limit: nodes of the solver's search tree per program, of which a plan takes three at
            most; 0: always the greedy plan.
        time_limit_s: a backstop for the solver, wall-clock seconds per program; 0: always the
            greedy plan. A plan that it ended may differ on another machine, and says so.
        gap: the solver stops when its plan is proven this close to the best, as a share.
        batch_sizes: allowed batch sizes; a variant gets the largest that takes less than half the
            time limit.

    Attributes:
        last_gap: how far the last plan may be from the best, as a share; NaN if unknown.
        last_beta: share of demand that the last plan had to serve; NaN after a greedy plan.
    """

    def __init__(
        self,
        interval_s: float = 10.0,
        change: float = 0.3,
        node_limit: int = 200,
        time_limit_s: float = 10.0,
        gap: float = 1e-4,
        batch_sizes: Sequence[int] = (1, 2, 4, 8),
    ) -> None:
        super().__init__(interval_s, change)
        self.limits = SolverLimits(node_limit, gap, time_limit_s).validated()
        self.batch_sizes = check_batch_sizes(batch_sizes)
        self.last_gap = nan
        self.last_beta = nan
        self._held: dict[Placement, int] = {}  # workers by placement in the last plan

    def _plan(
        self, view: ClusterView, workers: Mapping[str, int], kinds: Sequence[DemandKind]
    ) -> Targets:
        options = worker_options(view, workers, kinds, self.batch_sizes)
        served = frozenset[int]().union(*(option.kinds for option in options))
        if len(served) < len(kinds):  # plan without the kinds that nothing can serve
            kinds = [kinds[k] for k in sorted(served)]
            options = worker_options(view, workers, kinds, self.batch_sizes)
        self.last_gap = self.last_beta = nan
        if not options:
            return Targets({}, {}, Reason.FALLBACK)
        known = self._known(kinds, options, workers)
        answer = self._optimise(kinds, options, workers, known)
        if answer is None:
            answer = _best_known(kinds, options, known)
        solution, quality = answer
        self.last_gap = quality.gap
        counts = _employ_spare(options, solution, workers)
        flows = _balanced(options, counts, solution.flows)
        self._held = {
            option.placement: count
            for option, count in zip(options, counts, strict=True)
            if count > 0
        }
        is_optimised = quality.source is not PlanSource.GREEDY or quality.is_proven
        return Targets(
            instances_of(options, counts, flows),
            {},
            Reason.OPTIMISED if is_optimised and isfinite(self.last_beta) else Reason.FALLBACK,
            shares_of(kinds, options, flows),
            quality=quality,
        )

    def _known(
        self,
        kinds: Sequence[DemandKind],
        options: Sequence[WorkerOption],
        workers: Mapping[str, int],
    ) -> _Known:
        """Returns the plans known before solving: the last one, if it fits, and a greedy one."""
        held = np.array([float(self._held.get(o.placement, 0)) for o in options])
        used = Counter[str]()
        for option, count in zip(options, held.tolist(), strict=True):
            used[option.placement.device_class] += round(count)
        greedy = greedy_plan(kinds, options, workers, headroom=BETAS[0])
        if held.any() and all(used[name] <= workers[name] for name in workers):
            return [(PlanSource.LAST_PLAN, held), (PlanSource.GREEDY, greedy)]
        return [(PlanSource.GREEDY, greedy)]

    def _optimise(
        self,
        kinds: Sequence[DemandKind],
        options: Sequence[WorkerOption],
        workers: Mapping[str, int],
        known: _Known,
    ) -> _Answer | None:
        """Returns the most accurate plan at the first beta that can be met; None without any."""
        if self.limits.node_limit == 0 or self.limits.time_limit_s == 0.0:
            return None
        program = ProteusProgram(kinds, options, workers)
        answer = self._at(BETAS[0], program, known)
        if answer is not None:
            return answer
        most = program.most_served(self.limits)
        if most.solution is not None:
            found = np.array(most.solution.counts, dtype=np.float64)
            known = [*known, (PlanSource.PROGRAM, found)]
        time_limit_s = self.limits.time_limit_s
        served = max(program.served_of(plan, time_limit_s) for _, plan in known)
        beta = next((beta for beta in BETAS[1:] if beta <= served + 1e-6), None)
        return None if beta is None else self._at(beta, program, known)

    def _at(self, beta: float, program: ProteusProgram, known: _Known) -> _Answer | None:
        """Returns the best of the known plans and the search; None if ``beta`` cannot be served."""
        answers = {
            source: solution
            for source, plan in known
            if (solution := program.accuracy_of(plan, beta, self.limits.time_limit_s)) is not None
        }
        search = program.most_accurate(beta, self.limits)
        bound = inf
        if search.solution is not None:
            answers[PlanSource.PROGRAM] = search.solution
            bound = search.solution.bound
        if not answers:
            return None
        best = max(solution.worth for solution in answers.values())
        source = next(
            source
            for source in (PlanSource.PROGRAM, PlanSource.LAST_PLAN, PlanSource.GREEDY)
            if source in answers and answers[source].worth >= best * (1.0 - _EQUAL)
        )
        solution = answers[source]
        solution = replace(solution, bound=max(bound, solution.worth))
        self.last_beta = beta
        remark = f"{beta:.0%} of demand can be served" if beta < 1.0 else ""
        return solution, PlanQuality(source, solution.gap, search.by_clock, remark)


def _best_known(
    kinds: Sequence[DemandKind], options: Sequence[WorkerOption], known: _Known
) -> _Answer:
    """Returns the best known plan by served share, then by accuracy, without any program."""
    plans = np.stack([plan for _, plan in known])
    value = worth(*served_and_accuracy(kinds, options, plans))
    # Of equal plans the greedy one is taken, because it is for the current demand.
    row = len(plans) - 1 - int(value[::-1].argmax())
    flows = {(k, o): float(given[row]) for k, o, given in fill(kinds, options, plans)}
    counts = tuple(round(count) for count in plans[row].tolist())
    quality = PlanQuality(known[row][0], nan)
    return Solution(counts, flows, float(value[row]), float(value[row]), inf), quality


def _employ_spare(
    options: Sequence[WorkerOption], solution: Solution, workers: Mapping[str, int]
) -> list[int]:
    """Returns the plan's counts with each idle worker set to what is busiest and can run there."""
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
    """Returns the flows with each variant's share divided by throughput between device classes.

    The accuracy stays the same, and no further worker is beyond its capacity.
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


_CHUNKS = 16  # parts of a device class's workers; one part moves at a time
_MOST_SWAPS = 32
_MOST_SWAP_ROWS = 500  # most swaps to compare at a time; with more the plan stays as it is


def greedy_plan(
    kinds: Sequence[DemandKind],
    options: Sequence[WorkerOption],
    workers: Mapping[str, int],
    headroom: float = 1.0,
) -> FloatArray:
    """Returns workers by option: adds what helps most until none is left, then swaps.

    Args:
        kinds: demand.
        options: options of workers.
        workers: number of workers by device class.
        headroom: planned capacity over demand.
    """
    kinds = [replace(kind, items_per_s=headroom * kind.items_per_s) for kind in kinds]
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
