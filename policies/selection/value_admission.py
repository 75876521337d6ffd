"""Who is served when not everyone can be.

At a price of device time some kinds of queries are just worth it: there is time for a share of them
only. That share is chosen at once and for good, evenly over time, so that those who are in can
count on being served and fill whole batches. If all of them waited for what the others leave, each
would come to its turn when it is too late. (How much time there is for them is what the linear
program behind the price says; like a knapsack's, its solution has one such price: Dantzig,
Operations Research 1957.)

Tenants share that time evenly, and who asks for less than an even share gets all of it: max-min
fairness (Bertsekas and Gallager, Data Networks, sec. 6.5.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from modelless.policies.selection.value_price import Kind, Short, kind_of
from modelless.policies.views import QueryView

Demand = tuple[Kind, str]
"""A kind of query of a tenant."""

_GOLDEN = 0.6180339887498949
"""Its multiples' fractional parts are spread most evenly over 0 to 1 (Knuth, TAOCP 3, sec. 6.4)."""


class Admission:
    """The share of each demand that is served; whatever is not told is served whole.

    Args:
        shares: 0 to 1.
    """

    def __init__(self, shares: Mapping[Demand, float]) -> None:
        self._shares = shares

    def __bool__(self) -> bool:
        """Whether anyone is left out."""
        return bool(self._shares)

    def share(self, demand: Demand) -> float:
        """Of a demand."""
        return self._shares.get(demand, 1.0)

    def admits(self, query: QueryView) -> bool:
        """Whether the query is among those for whom there is time.

        That stays as it is while the shares do; who is in a small share is in every larger one.
        """
        share = self._shares.get((kind_of(query), query.tenant))
        return share is None or query.query_id * _GOLDEN % 1.0 < share

    def times(self, other: Admission) -> Admission:
        """A share of each share."""
        shares = dict(self._shares)
        for demand, share in other._shares.items():
            shares[demand] = shares.get(demand, 1.0) * share
        return Admission(shares)


EVERYONE = Admission({})


def admission_of(short: Short | None, rates: Mapping[Demand, float]) -> Admission:
    """Share out the time there is.

    Args:
        short: the kinds for whom there is not enough; None if there is for all.
        rates: items a second of each demand.
    """
    if short is None:
        return EVERYONE
    asked: dict[str, float] = {}  # workers' time, by tenant
    for (kind, tenant), rate in rates.items():
        item_s = short.item_s.get(kind, math.inf)
        if item_s < math.inf:
            asked[tenant] = asked.get(tenant, 0.0) + rate * item_s
    left, served = short.spare, {}
    for number, tenant in enumerate(sorted(asked, key=asked.__getitem__)):
        gets = min(asked[tenant], left / (len(asked) - number))
        left -= gets
        served[tenant] = gets / asked[tenant] if asked[tenant] > 0.0 else 1.0
    return Admission(
        {
            (kind, tenant): served[tenant] if short.item_s[kind] < math.inf else 0.0
            for kind, tenant in rates
            if kind in short.item_s
        }
    )
