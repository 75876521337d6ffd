"""What was left for other device classes: of which queue, by whom, and until when that stands."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from modelless.policies.selection.best_value.menu import Menu
from modelless.policies.views import QueueView

_KEPT = 64
_GRID_S = 0.002
"""What is left is looked at again after one to two of this: all of it at the same moments."""
LONGEST_S = 2.0 * _GRID_S
"""How long that stands at most."""


class _Left(NamedTuple):
    """All of a queue was left.

    Attributes:
        since_s: since when its head was left.
        until_s: how long that stands.
        query_ids: its head, and those that were looked at.
    """

    since_s: float
    until_s: float
    query_ids: frozenset[int]


_Key = tuple[Menu, str, str, Hashable]
"""What is offered by which device class, scope, batch key."""


class LeftForOthers:
    """What was left.

    That goes for whoever joins a queue behind others, too, though some of them could be served: it
    costs them the few milliseconds until all is looked at again, and spares a look at each arrival.
    """

    def __init__(self) -> None:
        self._left: dict[_Key, _Left] = {}
        self._prune_at = _KEPT

    def __getstate__(self) -> dict[str, object]:
        # Menus are looked up by identity, which does not pickle.
        return {"_left": {}, "_prune_at": _KEPT}

    def until_s(self, menu: Menu, device_class: str, queue: QueueView, now_s: float) -> float:
        """Until when all of the queue is left by this class; ``now_s`` if it is not."""
        left = self._left.get((menu, device_class, queue.scope, queue.batch_key))
        if left is None or left.until_s <= now_s:
            return now_s
        return left.until_s if queue.queries[0].query_id in left.query_ids else now_s

    def put(
        self,
        menu: Menu,
        device_class: str,
        queue: QueueView,
        query_ids: Iterable[int],
        now_s: float,
    ) -> float:
        """All of the queue is left now; returns since when its head was.

        Args:
            menu, device_class: by whom.
            queue: what waits.
            query_ids: those of it that were looked at; the first need not be among them.
            now_s: the time.
        """
        key = menu, device_class, queue.scope, queue.batch_key
        before = self._left.get(key)
        if len(self._left) >= self._prune_at:
            lately_s = now_s - _GRID_S
            self._left = {k: left for k, left in self._left.items() if left.until_s > lately_s}
            self._prune_at = max(2 * len(self._left), _KEPT)
        since_s, head = now_s, queue.queries[0].query_id
        if before is not None and head in before.query_ids and now_s < before.until_s + _GRID_S:
            since_s = before.since_s
        self._left[key] = _Left(since_s, look_again_s(now_s), frozenset((head, *query_ids)))
        return since_s


def look_again_s(now_s: float) -> float:
    """Until when stands what is left now."""
    return (math.floor(now_s / _GRID_S) + 2) * _GRID_S
