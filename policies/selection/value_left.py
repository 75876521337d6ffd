"""What was left for other device classes: by whom, and until when that stands."""

from __future__ import annotations

import math

from modelless.policies.selection.value_menu import Menu

_SCOPES_KEPT = 4096


class Left:
    """What the workers of one device class have left, of queries of one rank.

    Workers with the same menu for a scope would all leave its queue; one with another menu may
    have something for it. A query that comes in is another question.

    Attributes:
        until_s: until when the latest answers stand.
    """

    __slots__ = ("_until_s", "until_s")

    def __init__(self) -> None:
        self.until_s = -math.inf
        self._until_s: dict[str, dict[Menu, float]] = {}  # by scope, for who has which menu

    def put(self, scope: str, menu: Menu) -> None:
        """Who has this menu leaves the scope's queue."""
        of_scope = self._until_s.get(scope)
        if of_scope is None:
            if len(self._until_s) >= _SCOPES_KEPT:
                self._until_s.clear()
            of_scope = self._until_s[scope] = {}
        of_scope[menu] = self.until_s

    def until(self, scope: str, menu: Menu) -> float:
        """Until when who has this menu has left the scope's queue as it is; -inf if it has not."""
        of_scope = self._until_s.get(scope)
        return -math.inf if of_scope is None else of_scope.get(menu, -math.inf)

    def on_query(self, scope: str) -> None:
        """A query of the scope has come in."""
        self._until_s.pop(scope, None)
