"""The inputs of this host's cost model: measurements, and predictions of what was not measured."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modelless.profiler.cost_model.placement_facts import describe_placements
from modelless.profiler.cost_model.serving_model import PlacementFigures, ServingCostModel
from modelless.profiler.cost_model.size_model import SizeModel
from modelless.profiler.cost_model.slowdowns import PairRun
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.campaign import BATCHES
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import PairRecords, Records
from modelless.variants.registry.catalog import Catalog
from modelless.variants.registry.registry import Registry
from modelless.variants.runtimes.engines import runs_on
from modelless.variants.vocabulary import DeviceClass, Placement, Variant

if TYPE_CHECKING:
    from modelless.profiler.devices.microbenchmark import DeviceRates


def read_measurements(
    registry: Registry, devices: Iterable[DeviceClass], facts: DeviceFacts
) -> list[Measurement]:
    """Returns the measurements of this host on the kinds of these device classes.

    Raises:
        StoreError: the store cannot be read.
    """
    records = Records(registry.store)
    return [
        row
        for kind in sorted({device.kind for device in devices})
        for row in records.current(facts, kind)
    ]


@dataclass(frozen=True, slots=True)
class CostInputs:
    """The inputs of a cost model; equal inputs make equal models on any machine.

    Attributes:
        measurements, pair_runs, predicted: see ``ServingCostModel``.
        learns: see ``Corrections``.
        sized: measurements at all sizes, see ``SizeModel``.
    """

    measurements: Sequence[Measurement]
    pair_runs: Sequence[PairRun] = ()
    predicted: Sequence[PlacementFigures] = ()
    learns: bool = True
    sized: Sequence[Measurement] = ()

    def is_predicted(self, placement: Placement, batch: int) -> bool:
        """Returns whether figures at a batch size lie outside what was measured."""
        batches = [row.batch for row in self.measurements if row.placement == placement]
        return not batches or not min(batches) <= batch <= max(batches)

    def model(self) -> ServingCostModel:
        """Returns a new model that has observed nothing yet."""
        return ServingCostModel(
            self.measurements,
            self.pair_runs,
            self.predicted,
            SizeModel(self.sized),
            learns=self.learns,
        )


def cost_inputs_of(
    registry: Registry,
    catalog: Catalog,
    devices: Iterable[DeviceClass],
    facts: DeviceFacts,
    measured: Sequence[Measurement],
    *,
    unmeasured: bool,
    learns: bool = True,
) -> CostInputs:
    """Returns what is known of the catalog's variants on this host's device classes.

    Args:
        registry: holds the pair runs, the measurements at all sizes and the facts of graphs.
        catalog: the variants.
        devices: device classes of this host.
        facts: facts of this host.
        measured: see ``read_measurements``.
        unmeasured: whether to predict placements of which nothing was measured, too.
        learns: see ``Corrections``.

    Raises:
        StoreError: the store cannot be read.
    """
    devices = list(devices)
    kinds = sorted({device.kind for device in devices})
    pairs, records = PairRecords(registry.store), Records(registry.store)
    pair_runs = [run for kind in kinds for run in pairs.current(facts.fingerprint_of(kind))]
    here = [row for kind in kinds for row in records.every_size(facts, kind)]
    sized = [row for row in (*here, *measured) if row.elements > 0]
    known = CostInputs(measured, pair_runs, learns=learns, sized=sized)
    rates: Mapping[str, DeviceRates] = {}
    elsewhere: Sequence[Measurement] = ()
    if unmeasured:
        # ONNX is slow to import.
        from modelless.profiler.devices.device_records import DeviceRecords

        rates = DeviceRecords(registry.store).current(devices, facts)
        elsewhere = records.elsewhere(facts)
    predictable = {device.name for device in devices} if elsewhere else set(rates)
    incomplete = find_gaps(
        measured, catalog.variants, devices, unmeasured=unmeasured, predictable=predictable
    )
    if not incomplete:
        return known
    # SciPy is slow to import, and only predictions need it.
    from modelless.profiler.cost_model.knowledge_base import read_knowledge_base
    from modelless.profiler.cost_model.unmeasured.figures import predict_unmeasured
    from modelless.profiler.cost_model.unmeasured.prior import shipped_prior

    placements = describe_placements(
        catalog.variants, devices, facts, catalog.models.values(), registry.graph_facts, rates
    )
    needed = incomplete.union(row.placement for row in measured)
    placements = {placement: one for placement, one in placements.items() if placement in needed}
    predicted = predict_unmeasured(
        shipped_prior(),
        placements,
        measured,
        BATCHES,
        read_knowledge_base(registry, facts),
        elsewhere,
    )
    return replace(known, predicted=predicted)


def find_gaps(
    measured: Sequence[Measurement],
    variants: Iterable[Variant],
    devices: Iterable[DeviceClass],
    *,
    unmeasured: bool,
    predictable: Container[str] = (),
) -> set[Placement]:
    """The placements of which something may be supposed.

    They are on device classes with measurements or, where unmeasured placements count, on
    predictable ones.

    Args:
        measured: on this host.
        variants, devices: of the placements.
        unmeasured: those, too, of which nothing was measured.
        predictable: device classes that are predicted from their rates or from other machines.
    """
    points = {(row.placement, row.batch) for row in measured}
    known = {placement for placement, _ in points}
    classes = {row.device_class for row in measured}
    placements = {
        Placement(variant.id, device.name)
        for variant in variants
        for device in devices
        if (device.name in classes or (unmeasured and device.name in predictable))
        and runs_on(variant.engine, device)
    }
    return {
        placement
        for placement in placements
        if (unmeasured or placement in known)
        and not all((placement, batch) in points for batch in BATCHES)
    }
