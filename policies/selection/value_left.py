"""What was left for other device classes: by whom, and until when that stands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from modelless.policies.views import QueueView, ResidentView, WorkerView

_KEPT, _SCOPES_KEPT = 64, 4096
_STALE_S = 1.0
"""What stands no longer for so long is not looked up again."""

_Key = tuple[int, str, int]


class Left:
    """What workers that hold the same have left, of queries of one rank.

    Args:
        key: identity of what they hold, device class, rank.
        residents: what they hold.

    Attributes:
        until_s: until when that stands.
        came: how many queries had come in by then.
        scopes: of the queues that were looked at.
    """

    __slots__ = ("came", "key", "residents", "scopes", "until_s")

    def __init__(self, key: _Key, residents: Mapping[str, ResidentView]) -> None:
        self.key = key
        self.residents = residents
        self.until_s = -math.inf
        self.came = 0
        self.scopes: set[str] = set()


class LeftForOthers:
    """What was left by all workers. A queue to which a query comes in is a new one to all."""

    def __init__(self) -> None:
        self._left: dict[_Key, Left] = {}
        self._came = 0  # queries
        self._last_of: dict[str, int] = {}  # by scope, the number of the last of them
        self._prune_at = _KEPT

    def __getstate__(self) -> dict[str, object]:
        # Identities do not pickle.
        return {"_left": {}, "_came": 0, "_last_of": {}, "_prune_at": _KEPT}

    def on_query(self, scope: str) -> None:
        """A query has come in."""
        last_of = self._last_of
        if scope not in last_of and len(last_of) >= _SCOPES_KEPT:
            last_of.clear()
            self._left.clear()
        self._came += 1
        last_of[scope] = self._came

    def by(self, worker: WorkerView, rank: int) -> Left:
        """What those who hold what the worker holds have left."""
        key = (id(worker.residents), worker.device_class, rank)
        left = self._left.get(key)
        if left is None or left.residents is not worker.residents:
            return Left(key, worker.residents)
        return left

    def new(self, left: Left, queues: Sequence[QueueView]) -> list[QueueView]:
        """The queues to which a query has come in since, and those that were not seen."""
        came, seen, last_of = left.came, left.scopes, self._last_of
        return [
            queue
            for queue in queues
            if last_of.get(queue.scope, 0) > came or queue.scope not in seen
        ]

    def put(self, left: Left, queues: Iterable[QueueView]) -> None:
        """What waits is left as it is now; these queues were looked at."""
        left.scopes.update([queue.scope for queue in queues])
        if left.key not in self._left and len(self._left) >= self._prune_at:
            now_s = left.until_s
            kept = {k: each for k, each in self._left.items() if each.until_s > now_s - _STALE_S}
            self._left, self._prune_at = kept, max(2 * len(kept), _KEPT)
        self._left[left.key] = left
        left.came = self._came
