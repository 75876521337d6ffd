"""Finds dominated variants, with ``variants.registry.dominance`` on what was measured."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from modelless.profiler.measure.measurement import Measurement
from modelless.variants.registry.catalog import Catalog
from modelless.variants.registry.dominance import (
    IsMoreAccurate,
    Standing,
    find_dominated,
    intervals_part,
)
from modelless.variants.registry.outcomes import Outcomes, latest_outcomes
from modelless.variants.store import Store
from modelless.variants.vocabulary import Variant


def standing_of(variant: Variant, points: Iterable[Measurement]) -> Standing:
    """Returns a variant's standing on one device, by its trusted measurements there."""
    trusted = [point for point in points if point.trusted]
    return Standing(
        variant.id,
        variant.accuracy,
        {point.batch: (point.p50_s, point.p90_s, point.p99_s) for point in trusted},
        {point.batch: point.memory_bytes for point in trusted},
    )


def in_pairs(outcomes: Mapping[str, Outcomes]) -> IsMoreAccurate:
    """Returns a comparison of accuracies on the same items, or by intervals where there are none.

    Variants that are right on exactly the same items are equally accurate.

    Args:
        outcomes: outcomes by variant id.
    """

    def is_more_accurate(one: Standing, other: Standing) -> bool:
        mine, theirs = outcomes.get(one.variant_id), outcomes.get(other.variant_id)
        difference = mine.compare(theirs) if mine is not None and theirs is not None else None
        if mine is None or theirs is None or difference is None:
            return intervals_part(one, other)
        return (difference.percent > 0.0 and difference.is_significant) or mine.is_same(theirs)

    return is_more_accurate


def dominated_by_device(
    variants: Sequence[Variant],
    measurements: Iterable[Measurement],
    outcomes: Mapping[str, Outcomes],
) -> dict[str, dict[str, str]]:
    """Returns the variants that dominate others on each device class.

    Args:
        variants: one version of each variant, of any tasks.
        measurements: measurements of one machine.
        outcomes: outcomes by variant id; see ``in_pairs``.

    Returns:
        For each variant id, by device class: the id of the variant that dominates it, or its own
            id.
    """
    known = {variant.id: variant for variant in variants}
    points: dict[tuple[str, str], dict[str, list[Measurement]]] = {}
    for row in measurements:
        if row.variant_id in known:
            group = points.setdefault((known[row.variant_id].task, row.device_class), {})
            group.setdefault(row.variant_id, []).append(row)
    found: dict[str, dict[str, str]] = {}
    for (_, device_class), group in points.items():
        standings = [standing_of(known[name], rows) for name, rows in group.items()]
        beaten = find_dominated(standings, in_pairs(outcomes))
        for name in group:
            found.setdefault(name, {})[device_class] = beaten.get(name, name)
    return found


def dominated_everywhere(
    victors: Mapping[str, Mapping[str, str]], device_classes: Collection[str]
) -> dict[str, str]:
    """Returns the variants that are dominated on all device classes on which they were measured.

    Args:
        victors: the result of ``dominated_by_device``.
        device_classes: the device classes that count.

    Returns:
        By variant id, a sentence that names the dominating variants.
    """
    reasons = {}
    for name, by_device in victors.items():
        here = {device: by for device, by in by_device.items() if device in device_classes}
        if here and all(by != name for by in here.values()):
            told = " and ".join(f"{by} on {device}" for device, by in sorted(here.items()))
            reasons[name] = (
                f"it is dominated by {told}: no slower, no less accurate and no larger. "
                "The setting serve_dominated: true serves it all the same."
            )
    return reasons


def without_dominated(
    catalog: Catalog,
    measurements: Iterable[Measurement],
    store: Store,
    device_classes: Collection[str],
) -> Catalog:
    """Returns the catalog without variants that are dominated on all of the device classes.

    Raises:
        StoreError: the store cannot be read.
    """
    outcomes = latest_outcomes(store, [variant.id for variant in catalog.variants])
    victors = dominated_by_device(catalog.variants, measurements, outcomes)
    return catalog.without(dominated_everywhere(victors, device_classes))
