"""Which workers this process can send batches to: what Serve's routers in it know.

A worker tells the control loop that it is there before Serve's routers know of it, and Serve takes
one that is to stop out of the routers before it stops. A batch sent to a worker that no router
knows would wait for nothing; so only those in here are given any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection


class RoutableWorkers:
    """Worker ids by Serve application, written by routers on whichever thread they run."""

    def __init__(self) -> None:
        self._ids: dict[str, frozenset[str]] = {}
        self._listeners: list[Callable[[], None]] = []

    def listen(self, on_change: Callable[[], None]) -> None:
        """Have ``on_change`` called after each change, on the router's thread."""
        self._listeners.append(on_change)

    def put(self, app: str, worker_ids: Collection[str]) -> None:
        """The application's workers are these now."""
        ids = frozenset(worker_ids)
        if ids != self._ids.get(app):
            self._ids[app] = ids
            for listener in tuple(self._listeners):
                listener()

    def app_of(self, worker_id: str) -> str | None:
        """The application that the worker belongs to; None if no router knows it."""
        for app, ids in tuple(self._ids.items()):
            if worker_id in ids:
                return app
        return None


ROUTABLE = RoutableWorkers()
"""Those of this process."""
