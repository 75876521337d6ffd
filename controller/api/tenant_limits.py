"""What each tenant uses, and whether it may use more: rate, open queries and cost of the day.

Every gateway admits queries by itself. It knows what the tenant used at the other gateways from the
control loop's last orders, a second old, so that the limits hold for the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from modelless.common.errors import OverloadedError
from modelless.controller.config import TenantSettings

DAY_S: Final = 86_400.0
_LEAST_SHARE: Final = 0.05
"""Of the rate, for a gateway while the others use all of it: else it would stay there for good."""


class TenantUse(NamedTuple):
    """What a tenant used.

    Attributes:
        queries: admitted since the last report; in what is told to a gateway, a second at others.
        open_queries: now.
        cost_usd: since the last report; in what is told to a gateway, of the day and the cluster.
    """

    queries: float = 0.0
    open_queries: int = 0
    cost_usd: float = 0.0


class _Account:
    """One tenant at this gateway."""

    def __init__(self, limits: TenantSettings) -> None:
        self.limits = limits
        self.tokens = self.burst
        self.filled_s = 0.0
        self.open_queries = 0
        self.queries = 0
        self.unreported_usd = 0.0
        self.others = TenantUse()

    @property
    def burst(self) -> float:
        return max(self.limits.max_queries_per_s or 0.0, 1.0)

    def check_rate(self, tenant: str, now_s: float) -> None:
        most_per_s = self.limits.max_queries_per_s
        if most_per_s is None:
            return
        per_s = max(most_per_s - self.others.queries, most_per_s * _LEAST_SHARE)
        self.tokens = min(self.tokens + (now_s - self.filled_s) * per_s, self.burst)
        self.filled_s = now_s
        if self.tokens < 1.0:
            raise OverloadedError(
                f"tenant {tenant!r} sends more than {most_per_s:g} queries a second "
                "(tenants.max_queries_per_s); send fewer",
                (1.0 - self.tokens) / per_s,
            )

    def check_open(self, tenant: str) -> None:
        most = self.limits.max_open_queries
        if most is not None and self.open_queries + self.others.open_queries >= most:
            raise OverloadedError(
                f"tenant {tenant!r} has {most} queries open (tenants.max_open_queries); wait for "
                "their answers"
            )

    def check_cost(self, tenant: str, now: float) -> None:
        most_usd = self.limits.max_cost_usd_per_day
        if most_usd is not None and self.others.cost_usd + self.unreported_usd >= most_usd:
            raise OverloadedError(
                f"tenant {tenant!r} has spent {most_usd:g} USD today "
                "(tenants.max_cost_usd_per_day); the next day begins at midnight UTC",
                DAY_S - now % DAY_S,
            )


class TenantBooks:
    """The tenants that have limits, at one gateway.

    Args:
        settings: by tenant.
    """

    def __init__(self, settings: Mapping[str, TenantSettings] = MappingProxyType({})) -> None:
        self._accounts: dict[str, _Account] = {}
        self.change(settings)

    def change(self, settings: Mapping[str, TenantSettings]) -> None:
        """Set the limits; what tenants have used counts on."""
        before, self._accounts = self._accounts, {}
        for name, limits in settings.items():
            account = self._accounts[name] = before.get(name) or _Account(limits)
            account.limits = limits
            account.tokens = min(account.tokens, account.burst)

    def admit(self, tenant: str, now_s: float, now: float, *, again: bool = False) -> None:
        """Count a query that begins.

        Args:
            tenant: of the query.
            now_s: on a clock that only grows, seconds.
            now: seconds since the epoch.
            again: whether it was admitted and closed before: then it is only open once more.

        Raises:
            OverloadedError: it is one too many; says when to come again.
        """
        account = self._accounts.get(tenant)
        if account is None:
            return
        if not again:
            account.check_cost(tenant, now)
            account.check_open(tenant)
            account.check_rate(tenant, now_s)
            account.tokens -= 1.0
            account.queries += 1
        account.open_queries += 1

    def close(self, tenant: str, cost_usd: float = 0.0) -> None:
        """Count the end of a query that was admitted, and what it cost."""
        account = self._accounts.get(tenant)
        if account is not None:
            account.open_queries = max(account.open_queries - 1, 0)  # it may have begun before
            account.unreported_usd += cost_usd

    def charge(self, tenant: str, cost_usd: float) -> None:
        """Count what a query cost that was closed already."""
        account = self._accounts.get(tenant)
        if account is not None:
            account.unreported_usd += cost_usd

    def take_use(self) -> dict[str, TenantUse]:
        """Return what the tenants used since the last call."""
        used = {}
        for name, account in self._accounts.items():
            used[name] = TenantUse(account.queries, account.open_queries, account.unreported_usd)
            account.others = account.others._replace(
                cost_usd=account.others.cost_usd + account.unreported_usd
            )
            account.queries, account.unreported_usd = 0, 0.0
        return used

    def put_back(self, used: Mapping[str, tuple[float, int, float]]) -> None:
        """Report again what ``take_use`` said of costs: its report did not arrive."""
        for name, (_, _, cost_usd) in used.items():
            account = self._accounts.get(name)
            if account is not None:
                others = account.others
                account.others = others._replace(cost_usd=others.cost_usd - cost_usd)
                account.unreported_usd += cost_usd

    def note_others(self, used: Mapping[str, TenantUse]) -> None:
        """Note what the tenants use elsewhere, and what they spent today in all."""
        for name, use in used.items():
            if name in self._accounts:
                self._accounts[name].others = use
