"""The cost model of this host: what was measured here, and what is expected of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modelless.profiler.device import DeviceFacts
from modelless.profiler.measured_model import MeasuredCostModel
from modelless.profiler.measurement import Measurement
from modelless.profiler.pair_records import PairRecords
from modelless.profiler.records import Records
from modelless.profiler.subjects import subjects_of
from modelless.variants.catalog import Catalog
from modelless.variants.registry import Registry
from modelless.variants.vocabulary import DeviceClass, Placement

BATCHES = (1, 2, 4, 8)
"""Batches at which something is expected even where nothing was measured."""


def read_cost_model(
    registry: Registry, catalog: Catalog, devices: Iterable[DeviceClass], facts: DeviceFacts
) -> MeasuredCostModel:
    """The cost model of the catalog's variants on this host's device classes.

    Args:
        registry: with the profiles.
        catalog: the variants.
        devices: device classes of this host.
        facts: of this host.

    Raises:
        StoreError: the store cannot be read.
    """
    devices = list(devices)
    records = Records(registry.store)
    pairs = PairRecords(registry.store)
    fingerprints = [facts.fingerprint_of(kind) for kind in sorted({d.kind for d in devices})]
    measured = [row for fingerprint in fingerprints for row in records.current(fingerprint)]
    pair_runs = [run for fingerprint in fingerprints for run in pairs.current(fingerprint)]
    if not _has_gaps(measured, catalog, devices):
        return MeasuredCostModel(measured, pair_runs=pair_runs)
    # SciPy is slow to import, and where everything was measured nothing needs it.
    from modelless.profiler.learning.prior import shipped_prior
    from modelless.profiler.learning.supposed import suppose

    subjects = subjects_of(
        catalog.variants, devices, facts, catalog.models.values(), registry.graph_facts
    )
    supposed = suppose(shipped_prior(), subjects, measured, BATCHES)
    return MeasuredCostModel(measured, pair_runs=pair_runs, supposed=supposed)


def _has_gaps(
    measured: Sequence[Measurement], catalog: Catalog, devices: Sequence[DeviceClass]
) -> bool:
    """Whether something may be supposed: a class with measurements lacks some."""
    known = {(row.placement, row.batch) for row in measured}
    classes = {row.device_class for row in measured}
    return any(
        (Placement(variant.id, device.name), batch) not in known
        for device in devices
        if device.name in classes
        for variant in catalog.variants
        for batch in BATCHES
    )
