"""The cluster's loads and unloads: the latest ones, and what all of them add up to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from modelless.controller.device.messages import ChangeKind, ResidencyChange

_MOST_WAITING: Final = 256
"""Kept until they are reported; beyond it the oldest are forgotten."""
_RECENT: Final = 32
"""Told of in the status."""


class ChangeBook:
    """The cluster's changes: the latest ones, and what all of them add up to."""

    def __init__(self) -> None:
        self._recent: deque[ResidencyChange] = deque(maxlen=_RECENT)
        self._fresh: deque[ResidencyChange] = deque(maxlen=_MOST_WAITING)
        self._counts: Counter[str] = Counter()
        self._declined: Counter[str] = Counter()
        self._loading_s = 0.0
        self._cold_queries = 0

    def enter(self, changes: Iterable[ResidencyChange], unmet: Mapping[str, int]) -> None:
        """A report came: what came and left, and the queries by scope that found nothing ready."""
        for change in changes:
            self._recent.append(change)
            self._fresh.append(change)
            self._counts[change.kind] += 1
            if change.kind == ChangeKind.LOADED:
                self._loading_s += change.seconds
        self._cold_queries += sum(unmet.values())

    def take(self) -> tuple[ResidencyChange, ...]:
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
                    **change._asdict(),
                    "at_s": round(change.at_s, 3),
                    "seconds": round(change.seconds, 4),
                    "reason": change.reason.value,
                    "displaced": list(change.displaced),
                }
                for change in reversed(self._recent)
            ],
        }
