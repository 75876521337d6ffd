"""Who is served first when not everyone can be.

At a price of device time some kinds of queries are just worth it: there is time for a share of them
only. Who is in that share is settled for each query, so that those who are in can count on being
served and fill whole batches. If all of them waited for what the others leave, each would come to
its turn when it is too late. (How much time there is for them is what the linear program behind the
price says; like a knapsack's, its solution has one such price: Dantzig, Operations Research 1957.)
Nobody is refused by that: who is not in runs while nobody else wants the device.

Priorities come first. Tenants share the time evenly, and who asks for less than an even share gets
all of it: max-min fairness (Bertsekas and Gallager, Data Networks, sec. 6.5.2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from modelless.policies.selection.best_value.price import Kind, Short, kind_of
from modelless.policies.views import QueryView

_ODD_A, _ODD_B, _MASK = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, (1 << 64) - 1


class Demand(NamedTuple):
    """Queries that are alike to admission."""

    kind: Kind
    tenant: str
    priority: int


def demand_of(query: QueryView) -> Demand:
    """The query's."""
    return Demand(kind_of(query), query.tenant, query.priority)


class Admission:
    """The share of each demand that is in; of whatever is not told everyone is.

    Args:
        shares: 0 to 1.
        first: demands that are in whatever time is worth.
    """

    def __init__(
        self, shares: Mapping[Demand, float], first: Collection[Demand] = frozenset()
    ) -> None:
        self._shares = {demand: share for demand, share in shares.items() if share < 1.0}
        self._first = frozenset(first)

    def __bool__(self) -> bool:
        """Whether anyone is left out."""
        return bool(self._shares or self._first)

    def share(self, demand: Demand) -> float:
        """Of a demand."""
        return self._shares.get(demand, 1.0)

    def admits(self, query: QueryView) -> bool:
        """Whether the query is in.

        That stays as it is while the shares do; who is in a small share is in every larger one.
        """
        share = self._shares.get(demand_of(query))
        return share is None or _spread(query.query_id) < share

    def is_first(self, query: QueryView) -> bool:
        """Whether the query is in whatever time is worth."""
        return bool(self._first) and demand_of(query) in self._first

    def times(self, other: Admission) -> Admission:
        """A share of each share."""
        demands = {**self._shares, **other._shares}
        shares = {demand: self.share(demand) * other.share(demand) for demand in demands}
        return Admission(shares, (self._first | other._first) - shares.keys())


EVERYONE = Admission({})


def admission_of(
    short: Short | None, rates: Mapping[Demand, float], patient: Collection[Demand] = ()
) -> Admission:
    """Share out the time there is for the kinds that are short of it, among the lowest priority.

    Higher priorities and tenants who ask for less than an even share come first.

    Args:
        short: for whom there is not enough; None if there is for all.
        rates: items a second of each demand.
        patient: demands that ask for no time just now; they are in, but for what is more urgent.
    """
    if short is None or not rates:
        return EVERYONE
    time = {demand: rate * short.item_s.get(demand.kind, 0.0) for demand, rate in rates.items()}
    modest = _content(_by_tenant(time, rates), short.capacity)
    lowest = min(demand.priority for demand in (*rates, *patient))
    first = {each for each in rates if each.priority > lowest or each.tenant in modest}
    scarce = [each for each in rates if each.kind in short.is_worth_it]
    left = short.spare - sum([time[demand] for demand in scarce if demand in first])
    shares: dict[Demand, float] = {}
    if left < 0.0:  # the others make room
        whole = [each for each in rates if each.kind not in short.is_worth_it and each not in first]
        there_is = sum([time[demand] for demand in whole])
        shares = {each: max(1.0 + left / there_is, 0.0) for each in whole if there_is > 0.0}
    for is_worth_it in (True, False):
        here = [each for each in scarce if short.is_worth_it[each.kind] is is_worth_it]
        here = [each for each in here if each not in first]
        asked = _by_tenant(time, here)
        given = _max_min(asked, max(left, 0.0))
        left -= sum(given.values())
        for demand in here:
            tenant = demand.tenant
            shares[demand] = given[tenant] / asked[tenant] if asked[tenant] > 0.0 else 1.0
    before_all = {each for each in patient if each.priority > lowest}
    return Admission(shares, (first & set(scarce)) | before_all)


def _by_tenant(time: Mapping[Demand, float], demands: Iterable[Demand]) -> dict[str, float]:
    asked: dict[str, float] = {}
    for demand in demands:
        asked[demand.tenant] = asked.get(demand.tenant, 0.0) + time[demand]
    return asked


def _content(asked: Mapping[str, float], there_is: float) -> set[str]:
    """Who gets all they ask for, if all is shared out evenly."""
    given = _max_min(asked, there_is)
    return {tenant for tenant, time in asked.items() if given[tenant] >= time}


def _max_min(asked: Mapping[str, float], there_is: float) -> dict[str, float]:
    """What each gets: all it asks for, or as much as anyone."""
    given: dict[str, float] = {}
    for number, tenant in enumerate(sorted(asked, key=lambda name: (asked[name], name))):
        given[tenant] = min(asked[tenant], there_is / (len(asked) - number))
        there_is -= given[tenant]
    return given


def _spread(number: int) -> float:
    """0 to 1, as if by chance: neighbours have nothing to do with each other."""
    mixed = number * _ODD_A & _MASK
    mixed = (mixed ^ mixed >> 32) * _ODD_B & _MASK
    return (mixed ^ mixed >> 32) / (_MASK + 1)
