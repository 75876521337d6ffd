"""The queues of nobody yet, as the workers of each outfit are shown them.

A worker that falls idle is shown every deferred queue that it could serve: dozens, where there are
many tasks, and few of them are other than when one like it was asked last. So what an outfit was
shown is kept, and only what has changed since is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from modelless.controller.core.outfits import Outfit
from modelless.policies.views import QueueView

if TYPE_CHECKING:
    from modelless.controller.core.servers import Servers
    from modelless.controller.core.waiting import Queue, QueueKey

_MOST_CHANGES = 4096
_MOST_KEPT = 256


class _Display:
    """What one outfit is shown.

    Attributes:
        views: by queue, in the order in which the queues came to be.
        looked: how many changes there had been when it was made or put right.
        clearings: how often it had been forgotten who can serve what by then.
    """

    __slots__ = ("clearings", "looked", "views")

    def __init__(self) -> None:
        self.views: dict[Queue, QueueView] = {}
        self.looked = self.clearings = -1


class Displays:
    """What each outfit is shown of the deferred queues.

    Args:
        deferred: these queues. Whoever puts a query into one or takes one out must say so, unless
            nobody has looked at the queue (``Queue.shown``) since that was last said.
    """

    def __init__(self, deferred: Mapping[QueueKey, Queue]) -> None:
        self._deferred = deferred
        self._changes: list[Queue] = []  # the latest, oldest first
        self._forgotten = 0  # changes before those
        self._kept: dict[Outfit, _Display] = {}

    def on_change(self, queue: Queue) -> None:
        """A query comes to a queue, which may be new, or leaves it, which may be gone then."""
        if len(self._changes) >= _MOST_CHANGES:
            self._forgotten += len(self._changes)
            self._changes.clear()
        self._changes.append(queue)

    def to(self, outfit: Outfit, servers: Servers) -> list[QueueView]:
        """The queues that a worker of this outfit could serve, oldest first.

        Args:
            outfit: what the worker holds.
            servers: who can serve what.
        """
        display = self._kept.get(outfit)
        if display is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            display = self._kept[outfit] = _Display()
        views, changes = display.views, self._changes
        since = display.looked - self._forgotten
        if (
            since < 0
            or display.clearings != servers.clearings
            or len(changes) - since > 2 * len(views) + 8
        ):
            views.clear()
            display.clearings = servers.clearings
            for key, queue in self._deferred.items():
                if outfit in servers[key[0]]:
                    views[queue] = queue.shown or queue.view
        else:
            for queue in changes[since:]:
                if not len(queue):
                    views.pop(queue, None)
                elif queue in views or outfit in servers[queue.key[0]]:
                    views[queue] = queue.shown or queue.view
        display.looked = self._forgotten + len(changes)
        return list(views.values())
