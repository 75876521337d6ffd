"""The items that a variant got right, kept in the history, to compare variants in pairs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select

from modelless.variants.metrics.metric import Metric
from modelless.variants.metrics.paired import PairedDifference, compare_right
from modelless.variants.store import HistoryRow, Store
from modelless.variants.validation.measuring import SEED, MeasuredAccuracy
from modelless.variants.vocabulary import Variant

REVISED: Final = "accuracy-revised"
"""The history's kind of row that says what an accuracy was, and what it has become."""

MEASURED: Final = "accuracy-measured"
"""The history's kind of row that says what was measured, and why it is not the accuracy."""

ENOUGH_ITEMS: Final = 300
"""On which two variants must not differ to count as equally accurate."""

_MOST_ITEMS: Final = 200_000  # kept; 25 kB
_KEY: Final = "measured"
_MOST_ROWS: Final = 256  # of the history that are looked at


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The items that were right, in the order in which they were taken.

    Attributes:
        metric: what judged.
        set_sha256, seed: the validation set and the order; runs of the same two begin alike.
        is_right: BOOL [items].
    """

    metric: str
    set_sha256: str
    seed: int
    is_right: NDArray[np.bool_]

    def compare(self, other: Outcomes) -> PairedDifference | None:
        """How much better these are than ``other``; None if they are not of the same items."""
        pair = self._in_common(other)
        return None if pair is None else compare_right(*pair)

    def is_same(self, other: Outcomes) -> bool:
        """Whether both are right on the very same items, of which there are enough.

        Of 300 items with no difference the 95 % bound of differing is 1 % (the rule of three;
        Hanley and Lippman-Hand, JAMA 249, 1983).
        """
        pair = self._in_common(other)
        return (
            pair is not None and len(pair[0]) >= ENOUGH_ITEMS and bool((pair[0] == pair[1]).all())
        )

    def _in_common(self, other: Outcomes) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
        """The outcomes on the items that both have; None if they are not of the same items."""
        same = (self.metric, self.set_sha256, self.seed)
        if same != (other.metric, other.set_sha256, other.seed):
            return None
        count = min(len(self.is_right), len(other.is_right))
        return self.is_right[:count], other.is_right[:count]


def details_of(measured: MeasuredAccuracy, metric: Metric) -> dict[str, Any]:
    """A measurement as plain data for the history, with the items' outcomes if they fit."""
    details: dict[str, Any] = {
        "metric": metric.name,
        "set_sha256": measured.set_sha256,
        "set_items": measured.set_items,
        "seed": SEED - measured.skipped,  # so that only runs that begin alike are compared
        "items": len(measured.evidence),
        "item_shapes": measured.item_shapes,
        "item_texts": measured.item_texts,
    }
    if metric.is_proportion and len(measured.evidence) <= _MOST_ITEMS:
        packed = np.packbits(measured.evidence.astype(np.bool_))
        details["is_right"] = base64.b64encode(packed.tobytes()).decode()
    return {_KEY: details}


def first_measured(
    variant: Variant, measured: MeasuredAccuracy, metric: Metric, reason: str
) -> HistoryRow:
    """That the accuracy which a variant is registered with was measured, with its outcomes."""
    accuracy = asdict(variant.accuracy)
    details = {"before": accuracy, "after": accuracy, **details_of(measured, metric)}
    return HistoryRow(kind=REVISED, subject=variant.id, reason=reason, details=details)


def note_measured(
    store: Store, variant_id: str, measured: MeasuredAccuracy, metric: Metric, reason: str
) -> None:
    """Note in the history what was measured but is not the variant's accuracy, and why not.

    Raises:
        StoreError: the store cannot be written.
    """
    details = {"accuracy": asdict(measured.accuracy), **details_of(measured, metric)}
    with store.transaction() as session:
        session.add(HistoryRow(kind=MEASURED, subject=variant_id, reason=reason, details=details))


def latest_outcomes(store: Store, variant_ids: Iterable[str]) -> dict[str, Outcomes]:
    """The outcomes behind the accuracies that hold now; of those that have some.

    Raises:
        StoreError: the store cannot be read.
    """
    newest = (
        select(func.max(HistoryRow.id))
        .where(HistoryRow.kind == REVISED, HistoryRow.subject.in_(list(variant_ids)))
        .group_by(HistoryRow.subject)
    )
    with store.session() as session:
        rows = list(session.scalars(select(HistoryRow).where(HistoryRow.id.in_(newest))))
    found = {row.subject: _outcomes(row.details) for row in rows}
    return {subject: each for subject, each in found.items() if each is not None}


def latest_item_shapes(store: Store, task: str) -> list[dict[str, tuple[int, ...]]]:
    """The sizes of the items that a task's accuracies were measured on last, the median's first.

    Raises:
        StoreError: the store cannot be read.
    """
    shapes = _latest(store, task, "item_shapes") or ()
    return [{name: tuple(sizes) for name, sizes in each.items()} for each in shapes]


def latest_item_texts(store: Store, task: str) -> Mapping[str, Sequence[str]]:
    """Some texts, by input, of the items that a task's accuracies were measured on last.

    Raises:
        StoreError: the store cannot be read.
    """
    return _latest(store, task, "item_texts") or {}


def _latest(store: Store, task: str, key: str) -> Any:
    """Return the note under a key of the task's last measured accuracy; None if there is none."""
    newest_first = (
        select(HistoryRow.details)
        .where(HistoryRow.kind.in_((REVISED, MEASURED)))
        .where(HistoryRow.subject.startswith(f"{task}/", autoescape=True))
        .order_by(HistoryRow.id.desc())
        .limit(_MOST_ROWS)
    )
    with store.session() as session:
        for details in session.scalars(newest_first):
            kept = details.get(_KEY)
            if isinstance(kept, dict) and kept.get(key):
                return kept[key]
    return None


def _outcomes(details: Mapping[str, Any]) -> Outcomes | None:
    kept = details.get(_KEY)
    if not isinstance(kept, dict) or "is_right" not in kept:
        return None
    try:
        packed = np.frombuffer(base64.b64decode(kept["is_right"]), np.uint8)
        is_right = np.unpackbits(packed, count=int(kept["items"])).astype(np.bool_)
        return Outcomes(kept["metric"], kept["set_sha256"], int(kept["seed"]), is_right)
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None  # another version's: then there are the intervals
