"""Predictive: plans capacity for the forecast, with headroom, in batches that deadlines allow.

The proactive autoscaling of MArk (Zhang et al., USENIX ATC 2019) and its successors: divide the
forecast by the throughput of a worker, and round up. A batch may take half the latency limit,
because a query may have to wait for the one before (Nexus, Shen et al., SOSP 2019). The cost of
loading is not considered.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, inf, isfinite
from typing import NamedTuple

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.scopes import scopes_of
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Demand, Targets, VariantFacts
from modelless.variants.vocabulary import Placement

_MOST_PER_S = 1e9
_MOST_WORKERS = 1_000_000
_MOST_LOOKS = 1024
_PREFERENCES = ("most-accurate", "cheapest")


class Predictive(ScalingPolicy):
    """One placement for each kind of demand, and as many workers as their batches keep busy.

    The rest of every worker's memory holds what ``fixed`` would hold, so that selection has
    alternatives. At least one worker of each existing class stays.

    Args:
        headroom: capacity over forecast, at least 1.
        prefer: which of the placements that meet the limits to use: most-accurate or cheapest.
        max_batch: most items in a batch to plan with.
        downscale_delay_s: the number of workers is the largest that was wanted within so many
            seconds (the stabilisation window of Kubernetes' Horizontal Pod Autoscaler).
    """

    def __init__(
        self,
        headroom: float = 1.2,
        prefer: str = "most-accurate",
        max_batch: int = 16,
        downscale_delay_s: float = 30.0,
    ) -> None:
        if not 1.0 <= headroom < inf:
            raise InvalidInputError.of("headroom", headroom, "a number, 1 or more")
        if prefer not in _PREFERENCES:
            raise InvalidInputError.of("prefer", prefer, " or ".join(_PREFERENCES))
        if type(max_batch) is not int or max_batch < 1:
            raise InvalidInputError.of("max_batch", max_batch, "a whole number, 1 or more")
        if not 0.0 <= downscale_delay_s < inf:
            raise InvalidInputError.of("downscale_delay_s", downscale_delay_s, "seconds, 0 or more")
        self.headroom = headroom
        self.prefer = prefer
        self.max_batch = max_batch
        self.downscale_delay_s = downscale_delay_s
        self._fallback = Fixed()
        self._wanted: deque[tuple[float, dict[str, int]]] = deque(maxlen=_MOST_LOOKS)

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        present = Counter(worker.device_class for worker in view.workers)
        classes = {name: present[name] for name in sorted(present) if name in view.device_classes}
        by_scope = _by_scope(view, classes)
        busy: dict[Placement, float] = {}  # workers that it keeps busy
        for demand in _expected(view, forecast_per_s):
            option = self._choose(demand, by_scope.get(demand.scope, ()), view)
            if option is not None:
                items = demand.items if 1.0 <= demand.items < inf else 1.0
                share = self.headroom * demand.rate_per_s * items * option.item_s
                busy[option.placement] = busy.get(option.placement, 0.0) + share
        workers: dict[str, int] = {}
        if forecast_per_s or view.demands:  # before anything came, the fleet is left alone
            workers = self._workers(view.now_s, classes, busy)
        ordered = sorted(busy, key=lambda p: (-busy[p], p.device_class, p.variant_id))
        instances = {
            placement: max(min(ceil(busy[placement]), workers[placement.device_class]), 1)
            for placement in ordered
        }
        for placement, count in self._fallback.targets(view, forecast_per_s).instances.items():
            instances.setdefault(placement, count)
        return Targets(instances, workers, Reason.FORECAST if busy else Reason.FIXED_SIZE)

    def _workers(
        self, now_s: float, present: Mapping[str, int], busy: Mapping[Placement, float]
    ) -> dict[str, int]:
        """Returns the workers by class that are kept busy, at least as many as recently."""
        loads = dict.fromkeys(present, 0.0)
        for placement, share in busy.items():
            loads[placement.device_class] += share
        wanted = {
            name: min(max(ceil(round(load, 6)), 1), _MOST_WORKERS) for name, load in loads.items()
        }
        if not self._wanted or now_s < self._wanted[-1][0]:  # at first, or if time jumped back
            self._wanted.clear()
            self._wanted.append((now_s, dict(present)))
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - self.downscale_delay_s:
            self._wanted.popleft()
        return {name: max(then.get(name, 1) for _, then in self._wanted) for name in wanted}

    def _choose(
        self, demand: Demand, options: Sequence[_Runnable], view: ClusterView
    ) -> _Option | None:
        """Returns the placement that should serve the demand; None if nothing can."""
        best, best_key = None, None
        for variant, name in options:
            if not variant.accuracy_percent >= demand.min_accuracy_percent:
                continue
            item_s = self._item_s(variant, name, demand.latency_s)
            if item_s is None:
                continue
            price_usd = view.device_classes[name].cost_usd(item_s)
            accuracy = -variant.accuracy_percent if self.prefer == "most-accurate" else 0.0
            key = (accuracy, price_usd, variant.variant_id, name)
            if best_key is None or key < best_key:
                best, best_key = _Option(Placement(variant.variant_id, name), item_s), key
        return best

    def _item_s(self, variant: VariantFacts, device_class: str, latency_s: float) -> float | None:
        """Returns the device time of an item in the most efficient batch within the deadline.

        A placement that is too slow for half of the limit runs one by one, if it is quick enough
        for that.
        """
        one_s = variant.latency_s[device_class]
        if not one_s <= latency_s:
            return None
        batch_s = variant.batch_s.get(device_class, ())[1 : self.max_batch + 1]
        allowed = [
            seconds / items
            for items, seconds in enumerate(batch_s, start=1)
            if 0.0 < seconds <= latency_s / 2.0 and isfinite(seconds)
        ]
        return min(allowed, default=one_s)


class _Option(NamedTuple):
    """A placement and the device time of an item there, in the planned batches."""

    placement: Placement
    item_s: float


_Runnable = tuple[VariantFacts, str]


def _by_scope(view: ClusterView, classes: Iterable[str]) -> dict[str, list[_Runnable]]:
    """Returns the options of each scope, where their latency is known."""
    found: dict[str, list[_Runnable]] = {}
    for variant in view.variants:
        runnable = [
            (variant, name) for name in classes if isfinite(variant.latency_s.get(name, inf))
        ]
        for scope in scopes_of(variant.variant_id):
            found.setdefault(scope, []).extend(runnable)
    return found


def _expected(view: ClusterView, forecast_per_s: Mapping[str, float]) -> Iterator[Demand]:
    """Yields the forecast divided among kinds as the last arrivals, without limits if there are
    none.

    Where the forecast is not finite, the last arrivals replace it.
    """
    kinds: dict[str, list[Demand]] = {}
    for demand in sorted(view.demands):
        if 0.0 < demand.rate_per_s < inf:
            kinds.setdefault(demand.scope, []).append(demand)
    for scope in sorted(set(forecast_per_s) | set(kinds)):
        mine = kinds.get(scope, [])
        came = sum(demand.rate_per_s for demand in mine)
        expected = forecast_per_s.get(scope, came)
        if expected != expected:
            expected = came
        expected = min(max(expected, 0.0), _MOST_PER_S)
        if expected == 0.0:
            continue
        for demand in mine or [Demand(scope, inf, 0.0, 1.0)]:
            share = demand.rate_per_s / came if mine else 1.0
            yield demand._replace(rate_per_s=expected * share)
