"""Writing the history: who changed what, when and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from modelless.variants.store.tables import HistoryRow


def record(
    session: Session, kind: str, subject: str, reason: str, details: Mapping[str, Any]
) -> None:
    """Note a change in the transaction that makes it; the time is the store's.

    Args:
        kind: of change, e.g. ``promoted``.
        subject: what it was done to, e.g. ``task/model/variant``.
        reason: a sentence.
        details: plain data; ``who`` did it, and what was there before and after.
    """
    session.add(HistoryRow(kind=kind, subject=subject, reason=reason, details=dict(details)))
