"""Measurements and pair runs in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from sqlalchemy import ColumnElement, and_, delete, func, select

from modelless.common.errors import InvalidInputError, StoreError
from modelless.profiler.cost_model.slowdowns import Bottleneck, PairRun
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.store import MeasurementRow, PairRunRow, Store
from modelless.variants.vocabulary import Placement

_FIELDS = tuple(field.name for field in fields(Measurement))
_KINDS = ("cpu", "gpu")
_PAIR_FIELDS = ("alone_s", "beside_s", "repeats", "trusted", "measured_at", "fingerprint")


class Records:
    """Measurements in the store: one for each placement, batch, shape and machine fingerprint."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, measurement: Measurement) -> bool:
        """Store ``measurement`` in place of an older one of the same point, in one transaction.

        A measurement that is not trusted does not replace a trusted one of the same engine version.

        Returns:
            Whether the measurement was stored.

        Raises:
            StoreError: the store cannot be written.
        """
        same_point = _same_point(measurement)
        with self._store.transaction() as session:
            before = session.scalar(select(MeasurementRow).where(same_point))
            if (
                before is not None
                and before.engine == measurement.engine
                and before.trusted
                and not measurement.trusted
            ):
                return False
            session.execute(delete(MeasurementRow).where(same_point))
            session.add(MeasurementRow(**{name: getattr(measurement, name) for name in _FIELDS}))
        return True

    def current(self, facts: DeviceFacts, kind: str | None = None) -> list[Measurement]:
        """Returns the measurements of a machine with the engines it has now, trusted or not.

        Of a placement measured at several sizes, those of its typical size.

        Args:
            facts: facts of the machine; another version of an engine would take another time.
            kind: of its devices; None for all of them.

        Raises:
            StoreError: the store cannot be read, or holds an impossible row.
        """
        return _typical(self.every_size(facts, kind))

    def every_size(self, facts: DeviceFacts, kind: str | None = None) -> list[Measurement]:
        """Returns what ``current`` does, at all sizes; raises as it does."""
        kinds = _KINDS if kind is None else (kind,)
        return self._select(
            MeasurementRow.fingerprint.in_([facts.fingerprint_of(each) for each in kinds]),
            MeasurementRow.engine.in_(facts.engine_names),
        )

    def everything(self) -> list[Measurement]:
        """Returns the measurements of all machines at typical sizes; raises as ``current`` does."""
        return _typical(self._select())

    def elsewhere(self, facts: DeviceFacts) -> list[Measurement]:
        """Returns the measurements of other machines at typical sizes; raises as ``current``."""
        own = [facts.fingerprint_of(kind) for kind in _KINDS]
        return _typical(self._select(MeasurementRow.fingerprint.not_in(own)))

    def count(self, variant_ids: Iterable[str]) -> dict[str, int]:
        """Returns the number of points of these variants on all machines, by id; none are left out.

        Raises:
            StoreError: the store cannot be read.
        """
        name = MeasurementRow.variant_id
        counts = select(name, func.count()).where(name.in_(list(variant_ids))).group_by(name)
        with self._store.transaction() as session:
            return {row[0]: row[1] for row in session.execute(counts)}

    def _select(self, *conditions: ColumnElement[bool]) -> list[Measurement]:
        columns = ("variant_id", "device_class", "batch", "shape")
        order = [getattr(MeasurementRow, name) for name in columns]
        with self._store.session() as session:
            rows = session.scalars(
                select(MeasurementRow)
                .where(*conditions)
                .order_by(*order, MeasurementRow.measured_at)
            )
            return [_measurement(row) for row in rows]


def _typical(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows of each placement's typical size; if there are several, of the one measured last."""
    latest: dict[tuple[Placement, str], Measurement] = {}
    for row in rows:
        known = latest.get((row.placement, row.fingerprint))
        if row.is_typical and (known is None or known.measured_at <= row.measured_at):
            latest[row.placement, row.fingerprint] = row
    shapes = {key: row.shape for key, row in latest.items()}
    return [
        row
        for row in rows
        if row.is_typical and shapes[row.placement, row.fingerprint] == row.shape
    ]


def _same_point(measurement: Measurement) -> ColumnElement[bool]:
    return and_(
        MeasurementRow.variant_id == measurement.variant_id,
        MeasurementRow.device_class == measurement.device_class,
        MeasurementRow.batch == measurement.batch,
        MeasurementRow.shape == measurement.shape,
        MeasurementRow.fingerprint == measurement.fingerprint,
    )


def _measurement(row: MeasurementRow) -> Measurement:
    try:
        return Measurement(**{name: getattr(row, name) for name in _FIELDS})
    except (InvalidInputError, TypeError) as error:
        raise StoreError(
            f"The store holds a measurement that cannot be true (row {row.id}): {error} "
            "Profile that variant again."
        ) from error


class PairRecords:
    """Pair runs in the store: one for each placement, neighbour and machine fingerprint."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, run: PairRun) -> None:
        """Store ``run`` in place of an older one of the same pair, in one transaction.

        A run that is not trusted does not replace one that is.

        Raises:
            StoreError: the store cannot be written.
        """
        row = PairRunRow(
            variant_id=run.placement.variant_id,
            device_class=run.placement.device_class,
            kind=run.kind.value,
            neighbour_variant_id=run.neighbour.variant_id,
            neighbour_device_class=run.neighbour.device_class,
            neighbour_kind=run.neighbour_kind.value,
            **{name: getattr(run, name) for name in _PAIR_FIELDS},
        )
        same = (
            PairRunRow.variant_id == row.variant_id,
            PairRunRow.device_class == row.device_class,
            PairRunRow.neighbour_variant_id == row.neighbour_variant_id,
            PairRunRow.neighbour_device_class == row.neighbour_device_class,
            PairRunRow.fingerprint == row.fingerprint,
        )
        with self._store.transaction() as session:
            trusted = session.scalar(select(PairRunRow.trusted).where(*same))
            if trusted and not run.trusted:
                return
            session.execute(delete(PairRunRow).where(*same))
            session.add(row)

    def current(self, fingerprint: str) -> list[PairRun]:
        """Returns the pair runs of the machine with ``fingerprint``.

        Raises:
            StoreError: the store cannot be read, or holds an impossible row.
        """
        with self._store.session() as session:
            rows = session.scalars(
                select(PairRunRow)
                .where(PairRunRow.fingerprint == fingerprint)
                .order_by(PairRunRow.id)
            )
            return [_pair_run(row) for row in rows]


def _pair_run(row: PairRunRow) -> PairRun:
    try:
        return PairRun(
            placement=Placement(row.variant_id, row.device_class),
            kind=Bottleneck(row.kind),
            neighbour=Placement(row.neighbour_variant_id, row.neighbour_device_class),
            neighbour_kind=Bottleneck(row.neighbour_kind),
            **{name: getattr(row, name) for name in _PAIR_FIELDS},
        )
    except (InvalidInputError, ValueError) as error:
        raise StoreError(
            f"The store holds a pair run that cannot be true (row {row.id}): {error} "
            "Run 'modelless profile --neighbours' again."
        ) from error
