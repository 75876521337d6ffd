"""What came to a device and what left it: why, for what, how long it took, how many bytes."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import Final

from modelless.controller.device.changes import Change, ChangeKind
from modelless.policies.reasons import Reason

_MOST_WAITING: Final = 256
"""Kept until they are reported; beyond it the oldest are forgotten."""


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
