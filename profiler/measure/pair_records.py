"""Pair runs in the store."""

from __future__ import annotations

from sqlalchemy import delete, select

from modelless.common.errors import InvalidInputError, StoreError
from modelless.profiler.cost_model.slowdowns import Bottleneck, PairRun
from modelless.variants.store import PairRunRow, Store
from modelless.variants.vocabulary import Placement

_PLAIN_FIELDS = ("alone_s", "beside_s", "repeats", "trusted", "measured_at", "fingerprint")


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
            **{name: getattr(run, name) for name in _PLAIN_FIELDS},
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
            **{name: getattr(row, name) for name in _PLAIN_FIELDS},
        )
    except (InvalidInputError, ValueError) as error:
        raise StoreError(
            f"The store holds a pair run that cannot be true (row {row.id}): {error} "
            "Run 'modelless profile --neighbours' again."
        ) from error
