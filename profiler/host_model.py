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
from modelless.variants.runtimes.engines import runs_on
from modelless.variants.vocabulary import DeviceClass, Placement

BATCHES = (1, 2, 4, 8)
"""Batches at which something is expected even where nothing was measured."""


def read_measurements(
    registry: Registry, devices: Iterable[DeviceClass], facts: DeviceFacts
) -> list[Measurement]:
    """What was measured on this host, on the kinds of these device classes.

    Raises:
        StoreError: the store cannot be read.
    """
    records = Records(registry.store)
    return [
        row
        for kind in sorted({device.kind for device in devices})
        for row in records.current(facts.fingerprint_of(kind))
    ]


def cost_model_of(
    registry: Registry,
    catalog: Catalog,
    devices: Iterable[DeviceClass],
    facts: DeviceFacts,
    measured: Sequence[Measurement],
) -> MeasuredCostModel:
    """The cost model of the catalog's variants on this host's device classes.

    Args:
        registry: with the pair runs and the graphs' facts.
        catalog: the variants.
        devices: device classes of this host.
        facts: of this host.
        measured: see ``read_measurements``.

    Raises:
        StoreError: the store cannot be read.
    """
    devices = list(devices)
    pairs = PairRecords(registry.store)
    pair_runs = [
        run
        for kind in sorted({device.kind for device in devices})
        for run in pairs.current(facts.fingerprint_of(kind))
    ]
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
        if runs_on(variant.engine, device)
        for batch in BATCHES
    )
