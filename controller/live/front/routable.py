"""The workers that this process can send batches to: those that Serve's routers in it know.

A worker reports to the control loop before Serve's routers know it, and Serve takes a worker out of
the routers before it stops. A batch for a worker that no router knows would wait in vain, so only
the workers in here are given batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection


class RoutableWorkers:
    """Worker ids by Serve application. Routers write them, each on its own thread."""

    def __init__(self) -> None:
        self._ids: dict[str, frozenset[str]] = {}
        self._listeners: list[Callable[[], None]] = []

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after each change, on the router's thread."""
        self._listeners.append(on_change)

    def put(self, app: str, worker_ids: Collection[str]) -> None:
        """Set the application's workers."""
        ids = frozenset(worker_ids)
        if ids != self._ids.get(app):
            self._ids[app] = ids
            for listener in tuple(self._listeners):
                listener()

    def app_of(self, worker_id: str) -> str | None:
        """Return the application that the worker belongs to; None if no router knows it."""
        for app, ids in tuple(self._ids.items()):
            if worker_id in ids:
                return app
        return None


ROUTABLE = RoutableWorkers()
"""The workers that this process's routers know."""
