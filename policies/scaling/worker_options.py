"""The options of a worker: one variant in batches of one size.

They serve planners that give each worker one variant, such as Proteus (Ahmad et al., ASPLOS 2024)
and InfAdapter (Salmani et al., EuroMLSys 2023). Workers of a device class are alike, so a plan is a
number of workers by option.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.policies.scaling.demand_mix import DemandKind
from modelless.policies.scopes import in_scope
from modelless.policies.views import ClusterView, FloatArray, VariantFacts
from modelless.variants.vocabulary import Placement

_SLO_SHARE = 0.5  # of the limit; the other half is for the wait, as in Proteus
_SERVED_FIRST = 1e3  # weight of the served share over the accuracy


@dataclass(frozen=True, slots=True)
class WorkerOption:
    """A variant on a worker of a device class, in batches of ``batch``.

    Attributes:
        placement: variant and device class.
        batch: items in a batch.
        items_per_s: throughput in such batches.
        accuracy_percent: accuracy of the variant.
        load_s: time to load the variant there, seconds.
        kinds: indices of the kinds of demand that it may serve.
    """

    placement: Placement
    batch: int
    items_per_s: float
    accuracy_percent: float
    load_s: float
    kinds: frozenset[int]


def check_batch_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns ``sizes`` ascending, or raises InvalidInputError if they are no batch sizes."""
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise InvalidInputError.of("batch_sizes", sizes, "whole numbers, 1 or more")
    return tuple(sorted(set(sizes)))


def worker_options(
    view: ClusterView,
    workers: Mapping[str, int],
    kinds: Sequence[DemandKind],
    batch_sizes: Sequence[int],
) -> list[WorkerOption]:
    """Returns the options that a plan may need, in a fixed order.

    The batch of a variant is the largest that takes less than half the time limit, as in Proteus:
    half the tightest limit of the kinds that it may serve, since it may get queries of all of them.
    An option is left out if another of the device class can replace it in every plan: one for at
    least the same kinds, as accurate and with as much throughput.

    Args:
        view: the cluster.
        workers: number of workers by device class; other classes are ignored.
        kinds: demand.
        batch_sizes: allowed batch sizes.
    """
    found: list[WorkerOption] = []
    for name in sorted(workers):
        sizes = [worker.memory_bytes for worker in view.workers if worker.device_class == name]
        most_bytes = max(sizes, default=0)
        options = [
            option
            for variant in view.variants
            if variant.memory_bytes.get(name, inf) <= most_bytes
            and (option := _option_of(variant, name, kinds, batch_sizes)) is not None
        ]
        kept: list[WorkerOption] = []
        for option in sorted(options, key=_best_first):
            if not any(
                option.kinds <= other.kinds and option.items_per_s <= other.items_per_s
                for other in kept  # all at least as accurate
            ):
                kept.append(option)
        found += kept
    return found


def _best_first(option: WorkerOption) -> tuple[float, float, str]:
    return -option.accuracy_percent, -option.items_per_s, option.placement.variant_id


def _option_of(
    variant: VariantFacts, device_class: str, kinds: Sequence[DemandKind], sizes: Sequence[int]
) -> WorkerOption | None:
    one_s = variant.latency_s.get(device_class, inf)
    latency_s: Sequence[float] = variant.batch_s.get(device_class, (0.0, one_s))
    known = [size for size in sizes if size < len(latency_s) and 0.0 < latency_s[size] < inf]
    if not known:
        return None
    limits_s = {
        number: _SLO_SHARE * kind.latency_s
        for number, kind in enumerate(kinds)
        if variant.accuracy_percent >= kind.min_accuracy_percent
        and latency_s[known[0]] < _SLO_SHARE * kind.latency_s
        and in_scope(variant.variant_id, kind.scope)
    }
    if not limits_s:
        return None
    tightest_s = min(limits_s.values())
    batch = max(size for size in known if latency_s[size] < tightest_s)
    load_s = variant.load_s.get(device_class, inf)
    return WorkerOption(
        Placement(variant.variant_id, device_class),
        batch,
        batch / latency_s[batch],
        variant.accuracy_percent,
        load_s if isfinite(load_s) else 0.0,
        frozenset(limits_s),
    )


def fill(
    kinds: Sequence[DemandKind], options: Sequence[WorkerOption], workers: FloatArray
) -> Iterator[tuple[int, int, FloatArray]]:
    """Gives demand to workers: kinds with few options first, the most accurate option first.

    Args:
        kinds: demand.
        options: options of workers.
        workers: number of workers by plan and option, shape (plans, options).

    Yields:
        Kind, option, and the items a second of the kind that go to the option, shape (plans,).
    """
    left = np.ascontiguousarray((workers * [option.items_per_s for option in options]).T)
    best_first = sorted(range(len(options)), key=lambda o: (-options[o].accuracy_percent, o))
    able = [[o for o in best_first if k in options[o].kinds] for k in range(len(kinds))]
    for kind in sorted(range(len(kinds)), key=lambda k: (len(able[k]), k)):
        wanted = np.full(len(workers), kinds[kind].items_per_s)
        for option in able[kind]:
            given = np.minimum(wanted, left[option])
            wanted -= given
            left[option] -= given
            yield kind, option, given


def served_and_accuracy(
    kinds: Sequence[DemandKind], options: Sequence[WorkerOption], workers: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns the served share of demand of each plan under ``fill``, and its mean accuracy.

    Args:
        kinds: demand.
        options: options of workers.
        workers: number of workers by plan and option, shape (plans, options).

    Returns:
        Two arrays of shape (plans,), 0 to 1; the accuracy is 0 where nothing is served.
    """
    served = np.zeros(len(workers))
    mass = np.zeros(len(workers))
    for _, option, given in fill(kinds, options, workers):
        served += given
        mass += given * (options[option].accuracy_percent / 100.0)
    total = sum(kind.items_per_s for kind in kinds)
    accuracy = np.divide(mass, served, out=np.zeros_like(mass), where=served > 0.0)
    return served / total, accuracy


def worth(served: FloatArray, accuracy: FloatArray) -> FloatArray:
    """Returns one figure to rank plans by: the served share first, then the accuracy."""
    value: FloatArray = _SERVED_FIRST * np.round(served, 9) + accuracy
    return value


def shares_of(
    kinds: Sequence[DemandKind],
    options: Sequence[WorkerOption],
    flows: Mapping[tuple[int, int], float],
) -> dict[str, dict[Placement, float]]:
    """Returns ``Targets.shares``: by scope the share of each placement, over all its kinds.

    Args:
        kinds: demand.
        options: options of workers.
        flows: items a second, or shares of all demand, by kind and option.
    """
    given: dict[str, dict[Placement, float]] = {}
    for (kind, option), flow in sorted(flows.items()):
        if flow > 0.0:
            shares = given.setdefault(kinds[kind].scope, {})
            placement = options[option].placement
            shares[placement] = shares.get(placement, 0.0) + flow
    normed: dict[str, dict[Placement, float]] = {}
    for scope, shares in given.items():
        total = sum(shares.values())
        parts = {placement: round(flow / total, 6) for placement, flow in shares.items()}
        normed[scope] = {placement: share for placement, share in parts.items() if share > 0.0}
    return normed


def instances_of(
    options: Sequence[WorkerOption],
    counts: Sequence[int],
    flows: Mapping[tuple[int, int], float],
) -> dict[Placement, int]:
    """Returns ``Targets.instances``, the placements that serve most first."""
    served: dict[Placement, float] = {}
    for (_, number), flow in flows.items():
        placement = options[number].placement
        served[placement] = served.get(placement, 0.0) + flow
    instances = {
        option.placement: count for option, count in zip(options, counts, strict=True) if count > 0
    }
    ordered = sorted(instances, key=lambda p: (-served.get(p, 0.0), p.device_class, p.variant_id))
    return {placement: instances[placement] for placement in ordered}
