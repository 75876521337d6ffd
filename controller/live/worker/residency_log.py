"""What came to a device and what left it: why, for what, how long it took, how many bytes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from modelless.controller.device.changes import Change, ChangeKind
from modelless.policies.reasons import Reason

_MOST_WAITING: Final = 256
"""Kept until they are reported; beyond it the oldest are forgotten."""
_RECENT: Final = 32
"""Told of in the status."""


class ChangeLog:
    """Gathers the changes of one device until they are reported.

    Args:
        worker_id: its name.
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._changes: deque[Change] = deque(maxlen=_MOST_WAITING)
        self._leaving: dict[str, tuple[Reason, str]] = {}
        self._displaced: defaultdict[str, list[str]] = defaultdict(list)

    def leaves(self, variant_id: str, reason: Reason, for_variant_id: str) -> None:
        """It was taken out of reach, perhaps for another's sake."""
        self._leaving[variant_id] = reason, for_variant_id
        if for_variant_id and variant_id not in self._displaced[for_variant_id]:
            self._displaced[for_variant_id].append(variant_id)

    def stays(self, variant_id: str) -> None:
        """It is wanted again before its memory was freed."""
        _, for_variant_id = self._leaving.pop(variant_id)
        if for_variant_id in self._displaced:
            self._displaced[for_variant_id].remove(variant_id)

    def left(self, variant_id: str, seconds: float, memory_bytes: int) -> None:
        """Its memory is free."""
        reason, for_variant_id = self._leaving.pop(variant_id)
        self._add(
            ChangeKind.UNLOADED,
            variant_id,
            reason,
            for_variant_id=for_variant_id,
            seconds=seconds,
            memory_bytes=memory_bytes,
        )

    def came(self, variant_id: str, reason: Reason, seconds: float, memory_bytes: int) -> None:
        """It is loaded."""
        displaced = tuple(self._displaced.pop(variant_id, ()))
        self._add(
            ChangeKind.LOADED,
            variant_id,
            reason,
            displaced=displaced,
            seconds=seconds,
            memory_bytes=memory_bytes,
        )

    def failed(self, variant_id: str, reason: Reason, problem: str) -> None:
        """It could not be loaded."""
        displaced = tuple(self._displaced.pop(variant_id, ()))
        self._add(ChangeKind.LOAD_FAILED, variant_id, reason, displaced=displaced, problem=problem)

    def take(self) -> tuple[Change, ...]:
        """The changes since the last call, oldest first."""
        taken = tuple(self._changes)
        self._changes.clear()
        return taken

    def _add(self, kind: ChangeKind, variant_id: str, reason: Reason, **facts: object) -> None:
        change = Change(time.time(), self._worker_id, kind, variant_id, reason, **facts)  # type: ignore[arg-type]
        self._changes.append(change)


class ChangeBook:
    """The cluster's changes: the latest ones, and what all of them add up to."""

    def __init__(self) -> None:
        self._recent: deque[Change] = deque(maxlen=_RECENT)
        self._fresh: deque[Change] = deque(maxlen=_MOST_WAITING)
        self._counts: Counter[str] = Counter()
        self._declined: Counter[str] = Counter()
        self._loading_s = 0.0
        self._cold_queries = 0

    def enter(self, changes: Iterable[Change], unmet: Mapping[str, int]) -> None:
        """A report came: what came and left, and the queries by scope that found nothing ready."""
        for change in changes:
            self._recent.append(change)
            self._fresh.append(change)
            self._counts[change.kind] += 1
            if change.kind == ChangeKind.LOADED:
                self._loading_s += change.seconds
        self._cold_queries += sum(unmet.values())

    def take(self) -> tuple[Change, ...]:
        """The changes entered since the last call, oldest first."""
        taken = tuple(self._fresh)
        self._fresh.clear()
        return taken

    def decline(self, variant_ids: Iterable[str]) -> None:
        """Loads on demand were found not worth what would have left for them."""
        self._declined.update(variant_ids)

    def status(self) -> dict[str, Any]:
        """All of it as plain data, the latest change first."""
        return {
            "cold_queries": self._cold_queries,
            "counts": dict(self._counts),
            "loading_s": round(self._loading_s, 3),
            "declined": dict(self._declined),
            "recent": [
                {
                    **asdict(change),
                    "at_s": round(change.at_s, 3),
                    "seconds": round(change.seconds, 4),
                    "reason": change.reason.value,
                    "displaced": list(change.displaced),
                }
                for change in reversed(self._recent)
            ],
        }
