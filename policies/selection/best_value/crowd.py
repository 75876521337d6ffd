"""Whom to look at of those who wait: enough of each sort to fill the batches that may be best."""

from __future__ import annotations

from modelless.policies.selection.best_value.menu import Menu
from modelless.policies.views import QueryView

_MOST_LOOKED_AT = 64


class Crowd:
    """Queries of one queue, the most urgent first, all of the priority of the first.

    Where it does not matter who is taken, the most urgent are as good as any, and a full batch of
    them is enough; twice that, if they are in such a hurry that some had better be given up. Else
    each may go only with those of its own sort (whom as many of the variants may serve), so that
    there must be enough of each sort: whoever stands between them blocks nobody.

    Args:
        menu: of the worker.
        is_choosy: whether it matters who is taken: at a price, or if others may be better.

    Attributes:
        queries, slack_s, reach: as in ``value_batches.Line``.
        enough: sorts of which there are enough: more of them need not be looked at.
    """

    def __init__(self, menu: Menu, *, is_choosy: bool) -> None:
        self.queries: list[QueryView] = []
        self.slack_s: list[float] = []
        self.reach: list[int] = []
        self.enough: set[int] = set()
        self._menu = menu
        self._is_choosy = is_choosy
        self._of_sort: dict[int, tuple[int, float]] = {}  # how many, and the first one's slack

    def take(self, query: QueryView, slack_s: float, reach: int) -> bool:
        """The next query in line; False if those behind need not be looked at."""
        queries = self.queries
        if queries and query.priority != queries[0].priority:
            return False
        if len(queries) >= self._menu.most:
            if not self._is_choosy:
                if self._is_full(len(queries), self.slack_s[0], min(self.reach)):
                    return False
            elif len(queries) >= _MOST_LOOKED_AT:
                return False
            elif reach in self.enough:
                return True
            elif self._is_full(*self._of_sort.get(reach, (0, 0.0)), reach):
                self.enough.add(reach)
                return True
        if self._is_choosy:
            count, first_s = self._of_sort.get(reach, (0, slack_s))
            self._of_sort[reach] = count + 1, first_s
        queries.append(query)
        self.slack_s.append(slack_s)
        self.reach.append(reach)
        return True

    def _is_full(self, count: int, first_slack_s: float, reach: int) -> bool:
        most = self._menu.most
        if count < most:
            return False
        return count >= 2 * most or first_slack_s >= self._menu.surely_s(slice(0, reach), most)
