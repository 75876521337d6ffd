"""The program of Proteus (Ahmad et al., ASPLOS 2024) as one HiGHS can solve.

As published, worker i runs variant j if the binary x_ij = 1, and takes the share z_ik of kind k:
accuracy, a product of x and z, makes the program bilinear. Two exact steps make it linear:

* u_ijk, what kind k sends to worker i while j runs there, stands for the product: sum_j u_ijk =
  z_ik and u_ijk <= x_ij. As one x_ij of a worker is 1, the other u_ijk vanish, so nothing is lost.
* Workers of a device class are alike, and every constraint and the objective is linear in their
  x, u and y. So their sums n, v and y by (device class, option) will do: a solution in sums is one
  in workers that share alike, with v <= demand x n in place of u <= x; and back, by adding up.

Demand is scaled to 1, so that coefficients stay near 1 whatever the load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, nan

import numpy as np

from modelless.policies.scaling.demand_mix import DemandKind
from modelless.policies.scaling.mixed_integer import MixedIntegerProgram, SolverLimits, SolverResult
from modelless.policies.scaling.worker_options import WorkerOption
from modelless.policies.views import FloatArray

_SLACK = 1e-6  # of the demand to be served: HiGHS keeps constraints to 1e-7

Plan = Sequence[float] | FloatArray
"""Workers by option."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan and its quality.

    Attributes:
        counts: workers by option, no more than are needed.
        flows: share of all demand by kind and option; they add up to 1.
        served: share of demand that is served.
        worth: the maximised quantity: the accuracy of all answers, 0 to 1, or the share that is
            served.
        bound: no plan is worth more; inf if unknown.
    """

    counts: tuple[int, ...]
    flows: Mapping[tuple[int, int], float]
    served: float
    worth: float
    bound: float

    @property
    def gap(self) -> float:
        """How much more another plan could be worth, as a share; NaN if unknown."""
        known = isfinite(self.bound) and self.worth > 0.0
        return max(self.bound / self.worth - 1.0, 0.0) if known else nan


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        solution: the best solution found; None if there is none.
        is_impossible: whether it is proven that there is none.
        by_clock: whether the wall-clock limit ended the search.
    """

    solution: Solution | None
    is_impossible: bool
    by_clock: bool


class ProteusProgram:
    """The program for one demand and its workers.

    Args:
        kinds: demand; each kind has at least one option.
        options: options of workers.
        workers: number of workers by device class.
    """

    def __init__(
        self,
        kinds: Sequence[DemandKind],
        options: Sequence[WorkerOption],
        workers: Mapping[str, int],
    ) -> None:
        demand = sum(kind.items_per_s for kind in kinds)
        self._shares = [kind.items_per_s / demand for kind in kinds]
        self._capacities = [min(o.items_per_s / demand, 1e6) for o in options]
        self._accuracies = [o.accuracy_percent / 100.0 for o in options]
        self._classes = [o.placement.device_class for o in options]
        self._workers = workers
        self._flows = [(k, o) for o, option in enumerate(options) for k in sorted(option.kinds)]

    def most_accurate(self, beta: float, limits: SolverLimits) -> SearchResult:
        """Returns the most accurate routing of all demand while ``beta`` of it is served.

        Args:
            beta: above 1 every worker keeps that much more capacity than is sent to it; below 1
                workers may be sent more than they can serve, as long as ``beta`` is served in all.
            limits: limits of the search.
        """
        return self._searched(self._accuracy(beta).maximise(limits), beta)

    def accuracy_of(self, plan: Plan, beta: float, time_limit_s: float) -> Solution | None:
        """Returns the most accurate routing for given workers; None if they cannot serve ``beta``.

        Args:
            plan: workers by option, no more than exist.
            beta: as for ``most_accurate``.
            time_limit_s: wall-clock limit, seconds.
        """
        return self._searched(self._accuracy(beta).evaluate_plan(plan, time_limit_s), beta).solution

    def most_served(self, limits: SolverLimits) -> SearchResult:
        """Returns the routing that serves the largest share of demand, which bounds beta."""
        return self._searched(self._service().maximise(limits), 0.0)

    def served_of(self, plan: Plan, time_limit_s: float) -> float:
        """Returns the largest share that given workers can serve; -inf if the solver failed."""
        return self._service().evaluate_plan(plan, time_limit_s).worth

    def _accuracy(self, beta: float) -> MixedIntegerProgram:
        options = len(self._capacities)
        gain = np.zeros(2 * options + len(self._flows))
        gain[2 * options :] = [self._accuracies[option] for _, option in self._flows]
        return self._program(gain, beta)

    def _service(self) -> MixedIntegerProgram:
        options = len(self._capacities)
        gain = np.zeros(2 * options + len(self._flows))
        gain[options : 2 * options] = 1.0
        return self._program(gain, 0.0)

    def _program(self, gain: FloatArray, beta: float) -> MixedIntegerProgram:
        """Returns a program with columns for workers, served items and flows, in this order."""
        options, flows = len(self._capacities), self._flows
        most = np.full(len(gain), inf)
        most[:options] = [self._workers[name] for name in self._classes]
        program = MixedIntegerProgram(gain, options, most)
        for name in sorted(self._workers):
            of_class = {o: 1.0 for o in range(options) if self._classes[o] == name}
            program.add(of_class, 0.0, float(self._workers[name]))
        by_kind: list[dict[int, float]] = [{} for _ in self._shares]
        sent: list[dict[int, float]] = [{} for _ in range(options)]
        for number, (kind, option) in enumerate(flows):
            column = 2 * options + number
            by_kind[kind][column] = 1.0
            sent[option][column] = -max(1.0, beta)
            program.add({column: 1.0, option: -self._shares[kind]}, -inf, 0.0)
        for kind, columns in enumerate(by_kind):
            program.add(columns, self._shares[kind], self._shares[kind])
        for option in range(options):
            served = options + option
            program.add({served: 1.0, option: -self._capacities[option]}, -inf, 0.0)
            program.add({served: 1.0, **sent[option]}, -inf, 0.0)
        program.add({options + o: 1.0 for o in range(options)}, beta - _SLACK, inf)
        return program

    def _searched(self, found: SolverResult, beta: float) -> SearchResult:
        if found.values is None:
            return SearchResult(None, found.is_impossible, found.by_clock)
        options, columns = len(self._capacities), found.values
        values = zip(self._flows, columns[2 * options :].tolist(), strict=True)
        sent_to = {flow: value for flow, value in values if value > _SLACK}
        needed = [0.0] * options  # the program allows workers that do nothing
        for (_, option), value in sent_to.items():
            needed[option] += max(1.0, beta) * value / self._capacities[option]
        counts = tuple(
            min(round(count), ceil(workers))
            for count, workers in zip(columns[:options].tolist(), needed, strict=True)
        )
        served = float(columns[options : 2 * options].sum())
        return SearchResult(
            Solution(counts, sent_to, served, found.worth, found.bound), False, found.by_clock
        )
