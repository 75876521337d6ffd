"""The demands of clients, and the placements that could serve each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

from modelless.policies.scopes import scopes_of
from modelless.policies.views import ClusterView, Demand
from modelless.variants.vocabulary import Placement


class Option(NamedTuple):
    """A placement that could be loaded; its price is that of a batch of one item."""

    price_usd: float
    placement: Placement
    accuracy_percent: float
    latency_s: float

    def meets(self, demand: Demand) -> bool:
        """Returns whether it is quick and accurate enough; False if its latency is unknown."""
        return (
            self.latency_s <= demand.latency_s
            and self.latency_s < inf
            and self.accuracy_percent >= demand.min_accuracy_percent
        )


ANYTHING = Demand("", inf, 0.0, 0.0)


def demands_of(view: ClusterView) -> list[Demand]:
    """Returns the demands; unmet ones come first, within a scope the strictest first."""
    known = {demand.scope for demand in view.demands}
    demands = [demand for demand in view.demands if demand.rate_per_s > 0.0]
    waiting = {scope for scope, count in view.open_queries.items() if count > 0}
    rates = {scope: rate for scope, rate in view.arrivals_per_s.items() if rate > 0.0}
    unmet = {scope for scope, rate in view.unmet_per_s.items() if rate > 0.0}
    others = (waiting | set(rates) | unmet) - known
    demands += [Demand(scope, inf, 0.0, rates.get(scope, 0.0)) for scope in others]

    def importance(demand: Demand) -> tuple[bool, float, str, float, float]:
        rate = rates.get(demand.scope, 0.0)
        is_met = demand.scope not in unmet
        return is_met, -rate, demand.scope, -demand.min_accuracy_percent, demand.latency_s

    return sorted(demands, key=importance)


def count_loading(view: ClusterView) -> int:
    """Returns the number of loads that have not ended."""
    return sum(instance.is_loading for worker in view.workers for instance in worker.instances)


def options_of(view: ClusterView, tasks: Collection[str]) -> Mapping[str, list[Option]]:
    """Returns the options of each scope of the tasks on the existing workers."""
    classes = sorted({worker.device_class for worker in view.workers} & set(view.device_classes))
    options: defaultdict[str, list[Option]] = defaultdict(list)
    for variant in view.variants:
        if variant.task not in tasks:
            continue
        for name in classes:
            latency_s = variant.latency_s.get(name)
            if latency_s is not None:
                price_usd = view.device_classes[name].cost_usd(latency_s)
                placement = Placement(variant.variant_id, name)
                option = Option(price_usd, placement, variant.accuracy_percent, latency_s)
                for scope in scopes_of(variant.variant_id):
                    options[scope].append(option)
    return options


def cheapest(options: Sequence[Option], demand: Demand) -> Option | None:
    """Returns the cheapest option that meets the demand; None if none does; ties go by name."""
    able = [option for option in options if option.meets(demand)]
    return min(able, key=lambda o: (o.price_usd, o.placement.variant_id), default=None)
