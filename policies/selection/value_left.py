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
        until_s: until when the latest answers stand.
        marks: by scope, how many queries had come in when its queue was left, and until when.
    """

    __slots__ = ("key", "marks", "residents", "until_s")

    def __init__(self, key: _Key, residents: Mapping[str, ResidentView]) -> None:
        self.key = key
        self.residents = residents
        self.until_s = -math.inf
        self.marks: dict[str, tuple[int, float]] = {}


class LeftForOthers:
    """What was left by all workers. A queue to which a query comes in is a new one to all."""

    def __init__(self) -> None:
        self._left: dict[_Key, Left] = {}
        self._came: dict[str, int] = {}  # queries, by scope
        self._prune_at = _KEPT

    def __getstate__(self) -> dict[str, object]:
        return {"_left": {}, "_came": {}, "_prune_at": _KEPT}  # identities do not pickle

    def on_query(self, scope: str) -> None:
        """A query has come in."""
        came = self._came
        if scope not in came and len(came) >= _SCOPES_KEPT:
            came.clear()
            self._left.clear()
        came[scope] = came.get(scope, 0) + 1

    def by(self, worker: WorkerView, rank: int) -> Left:
        """What those who hold what the worker holds have left."""
        key = (id(worker.residents), worker.device_class, rank)
        left = self._left.get(key)
        if left is None or left.residents is not worker.residents:
            return Left(key, worker.residents)
        return left

    def until(self, left: Left, queues: Sequence[QueueView]) -> list[float]:
        """Until when each queue was left as it is; -inf if it was not."""
        came = self._came
        scopes = [queue.scope for queue in queues]
        return [
            mark[1] if mark is not None and mark[0] == came.get(scope, 0) else -math.inf
            for scope, mark in zip(scopes, map(left.marks.get, scopes), strict=True)
        ]

    def put(self, left: Left, queues: Iterable[QueueView]) -> None:
        """These queues are left as they are."""
        if left.key not in self._left and len(self._left) >= self._prune_at:
            now_s = left.until_s
            kept = {k: each for k, each in self._left.items() if each.until_s > now_s - _STALE_S}
            self._left, self._prune_at = kept, max(2 * len(kept), _KEPT)
        self._left[left.key] = left
        for queue in queues:
            left.marks[queue.scope] = self._came.get(queue.scope, 0), left.until_s
