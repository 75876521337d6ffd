"""What devices of one host do to each other, as far as the control loop knows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from modelless.controller.live.messages import Report
from modelless.profiler.cost_model.measured_model import MeasuredCostModel
from modelless.variants.vocabulary import Placement

_ANSWERS_KEPT = 256

Holdings = tuple[tuple[Placement, ...], ...]
"""What each of some devices holds."""


class Neighbourhood:
    """How much each variant would be slowed beside what other devices hold.

    Args:
        cost_model: tells what pairs cost each other.
        variant_ids: what may be placed.
    """

    def __init__(self, cost_model: MeasuredCostModel, variant_ids: Sequence[str]) -> None:
        self._cost_model = cost_model
        self._variant_ids = variant_ids
        self._known: dict[tuple[str, Holdings], Mapping[str, float]] = {}

    def beside(self, report: Report, reports: Iterable[Report]) -> Holdings:
        """What the other devices of a member's host hold; nothing where no pairs are known."""
        if not self._cost_model.knows_pairs:
            return ()
        held = [
            tuple(
                Placement(name, other.state.device_class)
                for name in sorted(instance.variant_id for instance in other.state.instances)
            )
            for other in _others(report, reports)
            if other.state is not None
        ]
        return tuple(each for each in held if each)

    def slowdowns(self, device_class: str, beside: Holdings) -> Mapping[str, float]:
        """The slowdown of each variant on the class beside these, by id; empty beside nothing.

        Each device runs any of what it holds as often, and what several add multiplies.
        """
        if not beside:
            return MappingProxyType({})
        key = (device_class, beside)
        known = self._known.get(key)
        if known is None:
            known = MappingProxyType(
                {
                    name: self._slowdown(Placement(name, device_class), beside)
                    for name in self._variant_ids
                }
            )
            if len(self._known) >= _ANSWERS_KEPT:
                self._known.clear()
            self._known[key] = known
        return known

    def _slowdown(self, placement: Placement, beside: Holdings) -> float:
        slowdown = self._cost_model.slowdown
        return math.exp(
            sum(
                sum(math.log(slowdown(placement, neighbour)) for neighbour in held) / len(held)
                for held in beside
            )
        )


def busy_neighbours(report: Report, reports: Iterable[Report]) -> float:
    """The mean number of the other devices of a member's host that were busy lately."""
    return sum(
        other.state.busy_share for other in _others(report, reports) if other.state is not None
    )


def _others(report: Report, reports: Iterable[Report]) -> Iterable[Report]:
    return (
        other
        for other in reports
        if other.member_id != report.member_id and other.host == report.host
    )
