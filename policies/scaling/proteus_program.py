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
from typing import Any

import numpy as np

from modelless.policies.scaling.demand_mix import DemandKind
from modelless.policies.scaling.worker_options import WorkerOption
from modelless.policies.views import FloatArray

_SLACK = 1e-6  # of the demand to be served: HiGHS keeps constraints to 1e-7


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan and how good it is known to be.

    Attributes:
        counts: workers by option, no more than are needed.
        flows: share of all demand by kind and option; they add up to 1.
        served: share of demand that is served, the largest there is if that was asked for.
        gap: how much better another plan could be, as a share; 0 if this is proven the best.
    """

    counts: tuple[int, ...]
    flows: Mapping[tuple[int, int], float]
    served: float
    gap: float


class ProteusProgram:
    """The program for one state of demand and workers.

    Args:
        kinds: demand; each with an option at least.
        options: what workers may be set to.
        workers: by device class.
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

    def most_accurate(self, beta: float, time_limit_s: float, gap: float) -> Solution | None:
        """Route all demand as accurately as possible while ``beta`` of it is served.

        None: there is no such plan, or none was found in time.

        Args:
            beta: above 1 every worker keeps that much more capacity than is sent to it; below 1
                workers may be sent more than they can serve, as long as ``beta`` is served in all.
        """
        options, flows = len(self._capacities), self._flows
        gain = np.zeros(2 * options + len(flows))
        gain[2 * options :] = [self._accuracies[option] for _, option in flows]
        return self._solve(gain, beta, time_limit_s, gap)

    def most_served(self, time_limit_s: float, gap: float) -> Solution | None:
        """Serve as large a share of demand as possible, however accurately: what bounds beta."""
        options = len(self._capacities)
        gain = np.zeros(2 * options + len(self._flows))
        gain[options : 2 * options] = 1.0
        return self._solve(gain, 0.0, time_limit_s, gap)

    def _solve(
        self, gain: FloatArray, beta: float, time_limit_s: float, gap: float
    ) -> Solution | None:
        """Columns: workers by option, items served by option, then flows."""
        try:  # takes a while to import, and only this policy needs it
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import coo_array
        except ImportError:
            return None
        options, flows = len(self._capacities), self._flows
        rows = _Rows()
        for name in sorted(self._workers):
            of_class = {o: 1.0 for o in range(options) if self._classes[o] == name}
            rows.add(of_class, 0.0, float(self._workers[name]))
        by_kind: list[dict[int, float]] = [{} for _ in self._shares]
        sent: list[dict[int, float]] = [{} for _ in range(options)]
        for number, (kind, option) in enumerate(flows):
            column = 2 * options + number
            by_kind[kind][column] = 1.0
            sent[option][column] = -max(1.0, beta)
            rows.add({column: 1.0, option: -self._shares[kind]}, -inf, 0.0)
        for kind, columns in enumerate(by_kind):
            rows.add(columns, self._shares[kind], self._shares[kind])
        for option in range(options):
            served = options + option
            rows.add({served: 1.0, option: -self._capacities[option]}, -inf, 0.0)
            rows.add({served: 1.0, **sent[option]}, -inf, 0.0)
        rows.add({options + o: 1.0 for o in range(options)}, beta - _SLACK, inf)
        matrix = coo_array(
            (rows.values, (rows.rows, rows.columns)), shape=(len(rows.low), len(gain))
        )
        integral = np.zeros(len(gain))
        integral[:options] = 1
        most = np.full(len(gain), inf)
        most[:options] = [self._workers[name] for name in self._classes]
        result: Any = milp(
            -gain,
            integrality=integral,
            bounds=Bounds(0.0, most),
            constraints=LinearConstraint(matrix.tocsr(), rows.low, rows.high),
            options={"time_limit": time_limit_s, "mip_rel_gap": gap},
        )
        if result.x is None:
            return None
        found_gap = nan if result.mip_gap is None else float(result.mip_gap)
        values = zip(flows, result.x[2 * options :].tolist(), strict=True)
        sent_to = {flow: value for flow, value in values if value > _SLACK}
        needed = [0.0] * options  # the program does not mind workers that do nothing
        for (_, option), value in sent_to.items():
            needed[option] += max(1.0, beta) * value / self._capacities[option]
        return Solution(
            tuple(
                min(round(count), ceil(workers))
                for count, workers in zip(result.x[:options].tolist(), needed, strict=True)
            ),
            sent_to,
            float(result.x[options : 2 * options].sum()),
            found_gap if isfinite(found_gap) else inf,
        )


class _Rows:
    """A sparse matrix of constraints in the making."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, coefficients: Mapping[int, float], low: float, high: float) -> None:
        """low <= the sum of coefficient x column <= high."""
        for column, value in coefficients.items():
            self.rows.append(len(self.low))
            self.columns.append(column)
            self.values.append(value)
        self.low.append(low)
        self.high.append(high)
