"""The cost model of this host: what was measured here, and what is expected of the rest."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelless.profiler.cost_model.measured_model import Figures, MeasuredCostModel
from modelless.profiler.cost_model.online.settings import ResidualSettings
from modelless.profiler.cost_model.slowdowns import PairRun
from modelless.profiler.cost_model.subjects import subjects_of
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.campaign import BATCHES
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.pair_records import PairRecords
from modelless.profiler.measure.records import Records
from modelless.variants.registry.catalog import Catalog
from modelless.variants.registry.registry import Registry
from modelless.variants.runtimes.engines import runs_on
from modelless.variants.vocabulary import DeviceClass, Placement, Variant

if TYPE_CHECKING:
    from modelless.profiler.devices.microbenchmark import DeviceRates


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
        for row in records.current(facts, kind)
    ]


@dataclass(frozen=True, slots=True)
class CostInputs:
    """What a cost model is made of; the same inputs make the same model, wherever that is.

    Attributes:
        measurements, pair_runs, supposed: as ``MeasuredCostModel`` takes them.
        learns: see ``ResidualSettings``.
    """

    measurements: Sequence[Measurement]
    pair_runs: Sequence[PairRun] = ()
    supposed: Sequence[Figures] = ()
    learns: bool = True

    def model(self) -> MeasuredCostModel:
        """A model that has not seen anything yet."""
        return MeasuredCostModel(
            self.measurements,
            ResidualSettings(learns=self.learns),
            self.pair_runs,
            self.supposed,
        )


def cost_model_of(
    registry: Registry,
    catalog: Catalog,
    devices: Iterable[DeviceClass],
    facts: DeviceFacts,
    measured: Sequence[Measurement],
    *,
    unmeasured: bool,
) -> MeasuredCostModel:
    """The cost model of the catalog's variants on this host's device classes.

    Takes and raises what ``cost_inputs_of`` does.
    """
    return cost_inputs_of(
        registry, catalog, devices, facts, measured, unmeasured=unmeasured
    ).model()


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
    """What is known of the catalog's variants on this host's device classes.

    Args:
        registry: with the pair runs and the graphs' facts.
        catalog: the variants.
        devices: device classes of this host.
        facts: of this host.
        measured: see ``read_measurements``.
        unmeasured: suppose something of placements, too, of which nothing was measured.
        learns: see ``ResidualSettings``.

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
    rates = _own_rates(registry, devices, facts) if unmeasured else {}
    incomplete = with_gaps(measured, catalog.variants, devices, unmeasured=unmeasured, rated=rates)
    if not incomplete:
        return CostInputs(measured, pair_runs, learns=learns)
    # SciPy is slow to import, and where everything was measured nothing needs it.
    from modelless.profiler.cost_model.learned.prior import shipped_prior
    from modelless.profiler.cost_model.learned.supposed import suppose

    subjects = subjects_of(
        catalog.variants, devices, facts, catalog.models.values(), registry.graph_facts, rates
    )
    told = incomplete.union(row.placement for row in measured)
    subjects = {placement: one for placement, one in subjects.items() if placement in told}
    supposed = suppose(shipped_prior(), subjects, measured, BATCHES)
    return CostInputs(measured, pair_runs, supposed, learns)


def _own_rates(
    registry: Registry, devices: Iterable[DeviceClass], facts: DeviceFacts
) -> dict[str, DeviceRates]:
    from modelless.profiler.devices.device_records import DeviceRecords  # with ONNX, slow to import

    return DeviceRecords(registry.store).current(devices, facts)


def with_gaps(
    measured: Sequence[Measurement],
    variants: Iterable[Variant],
    devices: Iterable[DeviceClass],
    *,
    unmeasured: bool,
    rated: Container[str] = (),
) -> set[Placement]:
    """The placements of which something may be supposed.

    They are on device classes with measurements or, where unmeasured placements count, with rates.

    Args:
        measured: on this host.
        variants, devices: of the placements.
        unmeasured: those, too, of which nothing was measured.
        rated: device classes that were themselves measured (``microbenchmark``).
    """
    points = {(row.placement, row.batch) for row in measured}
    known = {placement for placement, _ in points}
    classes = {row.device_class for row in measured}
    placements = {
        Placement(variant.id, device.name)
        for variant in variants
        for device in devices
        if (device.name in classes or (unmeasured and device.name in rated))
        and runs_on(variant.engine, device)
    }
    return {
        placement
        for placement in placements
        if (unmeasured or placement in known)
        and not all((placement, batch) in points for batch in BATCHES)
    }
