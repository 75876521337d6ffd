"""The placements whose profile no longer holds, in the store's history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import select

from modelless.profiler.cost_model.serving_model import Drift
from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.records import Records
from modelless.variants.store import HistoryRow, Store
from modelless.variants.vocabulary import Placement

KIND: Final = "profile-drift"


def record_drifts(store: Store, drifts: Iterable[Drift], fingerprints: Mapping[str, str]) -> None:
    """Store entries that say that these placements should be profiled again.

    Args:
        store: the store to write to.
        drifts: the placements that drifted.
        fingerprints: fingerprint of the machine by device class (``DeviceFacts.fingerprint_of``).

    Raises:
        StoreError: the store cannot be written.
    """
    with store.transaction() as session:
        session.add_all(
            HistoryRow(
                kind=KIND,
                subject=drift.placement.variant_id,
                reason=f"on {drift.placement.device_class} it takes {drift.factor:.2f} times "
                "what was measured",
                details={
                    "device_class": drift.placement.device_class,
                    "factor": drift.factor,
                    "fingerprint": fingerprints[drift.placement.device_class],
                },
            )
            for drift in drifts
        )


def drifted_placements(
    store: Store, facts: DeviceFacts, kind: str = "cpu"
) -> dict[Placement, float]:
    """Returns the placements that drifted on that machine and were not reliably measured since.

    Each has the factor of what it took in service over what was measured, as last noted.

    Args:
        store: holds the entries and the measurements.
        facts: facts of the machine.
        kind: kind of its devices.

    Raises:
        StoreError: the store cannot be read.
    """
    measured: dict[Placement, datetime] = {}
    for row in Records(store).current(facts, kind):
        if row.trusted:
            newest = measured.get(row.placement, row.measured_at)
            measured[row.placement] = max(newest, row.measured_at)
    with store.session() as session:
        query = select(HistoryRow).where(HistoryRow.kind == KIND).order_by(HistoryRow.at)
        notes = list(session.scalars(query))
    fingerprint = facts.fingerprint_of(kind)
    drifted = {}
    for note in notes:
        placement = Placement(note.subject, note.details["device_class"])
        if note.details["fingerprint"] == fingerprint and (
            placement not in measured or measured[placement] < note.at
        ):
            drifted[placement] = float(note.details["factor"])
    return drifted
