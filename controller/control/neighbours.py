"""How much the devices of one host slow each other down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from modelless.controller.control.messages import MemberReport
from modelless.profiler.cost_model.slowdowns import Slowdowns
from modelless.variants.vocabulary import Placement

_ANSWERS_KEPT = 256

Holdings = tuple[tuple[Placement, ...], ...]
"""The placements that each of some devices holds."""


class NeighbourSlowdowns:
    """How many times as long each variant takes beside the variants that other devices hold."""

    def __init__(self, pairs: Slowdowns, variant_ids: Sequence[str]) -> None:
        self._pairs = pairs
        self._variant_ids = variant_ids
        self._known: dict[tuple[str, Holdings], Mapping[str, float]] = {}

    def slowdowns(
        self, report: MemberReport, reports: Iterable[MemberReport]
    ) -> Mapping[str, float]:
        """Return the slowdown of each variant on the member's device, by id; empty beside nothing.

        Each device runs any of the variants that it holds equally often, and the logarithms of
        several devices' slowdowns add up.
        """
        if not self._pairs.is_known or report.state is None:
            return {}
        beside = tuple(
            tuple(
                Placement(name, other.state.device_class)
                for name in sorted(instance.variant_id for instance in other.state.instances)
            )
            for other in _others_on_host(report, reports)
            if other.state is not None and other.state.instances
        )
        if not beside:
            return {}
        key = (report.state.device_class, beside)
        known = self._known.get(key)
        if known is None:
            known = MappingProxyType(
                {
                    name: _slowdown_beside(Placement(name, key[0]), beside, self._pairs)
                    for name in self._variant_ids
                }
            )
            if len(self._known) >= _ANSWERS_KEPT:
                self._known.clear()
            self._known[key] = known
        return known


def _slowdown_beside(placement: Placement, beside: Holdings, pairs: Slowdowns) -> float:
    return math.exp(
        sum(
            sum(math.log(pairs.slowdown(placement, neighbour)) for neighbour in held) / len(held)
            for held in beside
        )
    )


def busy_neighbours(report: MemberReport, reports: Iterable[MemberReport]) -> float:
    """Return the mean number of the other devices of a member's host that were busy lately."""
    return sum(
        other.state.busy_share
        for other in _others_on_host(report, reports)
        if other.state is not None
    )


def _others_on_host(
    report: MemberReport, reports: Iterable[MemberReport]
) -> Iterable[MemberReport]:
    return (
        other
        for other in reports
        if other.member_id != report.member_id and other.host == report.host
    )
