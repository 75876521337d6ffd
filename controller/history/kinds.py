"""The kinds of entries that there are: what serving writes, and what commands note beside it."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final

from sqlalchemy import select

from modelless.common.errors import InvalidInputError
from modelless.controller.control.messages import EntryKind
from modelless.variants.registry import promotion
from modelless.variants.store import HistoryRow, Store

SERVING_KINDS: Final = tuple(kind.value for kind in EntryKind)
"""What serving writes by itself, and only of these the oldest leave: what else is in the history
(validations, profiles that drifted) is read as state by those who wrote it."""

NOTED_KINDS: Final = (
    *promotion.KINDS,
    "accuracy-measured",
    "accuracy-revised",
    "profile-drift",
    "registered",
    "variant-made",
    "zoo-added",
)
"""What commands write, and trials and the cost model about what they found."""


def check_kinds(store: Store, asked: Collection[str]) -> None:
    """Refuse a kind that nobody writes and the store has not.

    Raises:
        InvalidInputError: says which kinds there are, and what was probably meant.
        StoreError: the store cannot be read.
    """
    if not set(asked) - {*SERVING_KINDS, *NOTED_KINDS}:
        return
    with store.session() as session:
        there = set(session.scalars(select(HistoryRow.kind).distinct()))
    known = [*SERVING_KINDS, *NOTED_KINDS, *sorted(there - {*SERVING_KINDS, *NOTED_KINDS})]
    for kind in asked:
        if kind not in known:
            near = difflib.get_close_matches(kind, known, n=3)
            hint = f"Did you mean {' or '.join(near)}?" if near else ""
            raise InvalidInputError.of("--kind", kind, ", ".join(known), hint)
