"""Who can serve a scope at all: asked for each queue whenever a worker falls idle."""

from __future__ import annotations

from collections.abc import Callable

from modelless.controller.dispatch.worker_groups import Shelves


class Servers(dict[str, Shelves]):
    """By scope, the outfits that hold a ready variant of it; found when first asked for.

    A mapping, so that what is known costs no call: a worker that falls idle looks once a queue.

    Args:
        find: finds them.
        most: scopes that are kept; others are found each time.

    Attributes:
        clearings: how often all were forgotten. In between, what the workers of an outfit can serve
            stays the same, though which outfits there are does not.
        renumberings: how often any were forgotten. In between, shelves keep their numbers.
    """

    def __init__(self, find: Callable[[str], Shelves], most: int) -> None:
        super().__init__()
        self._find = find
        self._most = most
        self.clearings = self.renumberings = 0

    def clear(self) -> None:
        """Forget all."""
        self.clearings += 1
        self.renumberings += 1
        super().clear()

    def __delitem__(self, scope: str) -> None:
        self.renumberings += 1
        super().__delitem__(scope)

    def __missing__(self, scope: str) -> Shelves:
        found = self._find(scope)
        if len(self) < self._most:
            self[scope] = found
        return found
