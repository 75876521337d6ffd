"""A lease on the store: one control plane at a time works with it.

The holder renews its lease; one that is not renewed ends by itself, so a dead holder locks nobody
out for long (Gray and Cheriton, SOSP 1989). Times are those of the database's clock.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.store.database import Store
from modelless.variants.store.tables import LeaseRow, UtcDateTime

LEASE_S: Final = 30.0
"""So long a lease holds after it was taken or renewed."""

_NAME: Final = "control"


def take_lease(store: Store, holder: str, shown: str) -> None:
    """Take the lease, or renew it.

    Args:
        holder: who takes it: it is renewed for the same one, and refused to any other.
        shown: the same for a person.

    Raises:
        EnvironmentUnfitError: another one holds it; the text says who, and since when.
        StoreError: the store cannot be written.
    """
    with store.transaction() as session:
        now = _now(session)
        row = session.get(LeaseRow, _NAME)
        if row is None or (row.holder != holder and row.expires_at <= now):
            row = session.merge(LeaseRow(name=_NAME, holder=holder, since=now))
        if row.holder != holder:
            raise EnvironmentUnfitError(
                f"The store {store.shown_url} has a control plane already: {row.shown}, since "
                f"{row.since:%Y-%m-%d %H:%M:%S} UTC. A store has one at a time: end that one with "
                "'modelless down', or name another store in MODELLESS_STORE_URL. If it is dead, "
                f"its lease ends in {(row.expires_at - now).total_seconds():.0f} s."
            )
        row.shown, row.expires_at = shown, now + timedelta(seconds=LEASE_S)


def end_lease(store: Store, holder: str) -> None:
    """End the holder's lease, if it has it. StoreError if the store cannot be written."""
    with store.transaction() as session:
        session.execute(delete(LeaseRow).where(LeaseRow.name == _NAME, LeaseRow.holder == holder))


def _now(session: Session) -> datetime:
    now: datetime = session.scalars(select(func.current_timestamp(type_=UtcDateTime()))).one()
    return now
