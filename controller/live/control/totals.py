"""Totals over the whole cluster, for the status: what tenants use, and loads and unloads.

What the tenants spent today outlives the control loop.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from modelless.common.files import write_whole
from modelless.controller.api.tenant_limits import DAY_S, TenantUse
from modelless.controller.control.messages import MemberReport
from modelless.controller.device.messages import ChangeKind, ResidencyChange

logger = logging.getLogger(__name__)

SPENDING: Final = "spending.json"


class TenantTotals:
    """Adds up the members' reports.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, home: Path, now: float) -> None:
        self._path = home / SPENDING
        self._day = int(now // DAY_S)
        self._spent_usd: dict[str, float] = {}
        self._used: dict[str, dict[str, TenantUse]] = {}  # by member: queries are a second
        try:
            kept = json.loads(self._path.read_text())
            if kept["day"] == self._day:
                self._spent_usd = {str(name): float(usd) for name, usd in kept["usd"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("what tenants spent today is not known: %s: %s", self._path, error)
        self._written = dict(self._spent_usd)

    def add(
        self, member_id: str, used: Mapping[str, TenantUse], interval_s: float, now: float
    ) -> None:
        if int(now // DAY_S) != self._day:
            self._day, self._spent_usd = int(now // DAY_S), {}
        for name, use in used.items():
            self._spent_usd[name] = self._spent_usd.get(name, 0.0) + use.cost_usd
        self._used[member_id] = {
            name: use._replace(queries=use.queries / interval_s if interval_s > 0.0 else 0.0)
            for name, use in used.items()
        }

    def remove(self, member_id: str) -> None:
        """Forget a member that is gone; what it spent stays."""
        self._used.pop(member_id, None)

    def of_others(self, member_id: str) -> dict[str, TenantUse]:
        """Return what tenants use at all other members, and spent today at all of them."""
        found = {name: TenantUse(cost_usd=usd) for name, usd in self._spent_usd.items()}
        for other, used in self._used.items():
            if other == member_id:
                continue
            for name, use in used.items():
                known = found.get(name, TenantUse())
                found[name] = TenantUse(
                    known.queries + use.queries,
                    known.open_queries + use.open_queries,
                    known.cost_usd,
                )
        return found

    def status(self, ends: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, float]]:
        """Return what each tenant uses now and spent today, as plain data.

        Args:
            ends: by tenant, how many queries had each outcome; of tenants without limits, too.
        """
        found: dict[str, dict[str, float]] = {name: dict(each) for name, each in ends.items()}
        for name, use in self.of_others("").items():
            found.setdefault(name, {}).update(
                queries_per_s=round(use.queries, 1),
                open=use.open_queries,
                usd_today=use.cost_usd,
            )
        return found

    def write(self) -> None:
        """Keep what was spent today, if it changed."""
        spent = dict(self._spent_usd)
        if spent != self._written:
            document = json.dumps({"day": self._day, "usd": spent})
            try:
                write_whole(self._path, document.encode(), mode=0o600)
            except OSError as error:
                logger.warning("what tenants spent is not kept: %s", error)
            else:
                self._written = spent


_RECENT: Final = 32
"""Changes that the status shows."""


class ResidencyTotals:
    """The latest loads and unloads of the cluster, and the sums of all."""

    def __init__(self) -> None:
        self._recent: deque[ResidencyChange] = deque(maxlen=_RECENT)
        self._counts: Counter[str] = Counter()
        self._declined: Counter[str] = Counter()
        self._loading_s = 0.0
        self._cold_queries = 0

    def add(self, report: MemberReport) -> None:
        for change in report.changes:
            self._recent.append(change)
            self._counts[change.kind] += 1
            if change.kind == ChangeKind.LOADED:
                self._loading_s += change.seconds
        self._cold_queries += sum(report.unmet.values())

    def add_declined(self, variant_ids: Iterable[str]) -> None:
        """Add loads on demand that were not worth what they would have displaced."""
        self._declined.update(variant_ids)

    def status(self) -> dict[str, Any]:
        """All of it as plain data, the latest change first."""
        return {
            "cold_queries": self._cold_queries,
            "counts": dict(self._counts),
            "loading_s": round(self._loading_s, 3),
            "declined": dict(self._declined),
            "recent": [
                {
                    **change._asdict(),
                    "at_s": round(change.at_s, 3),
                    "seconds": round(change.seconds, 4),
                    "reason": change.reason.value,
                    "displaced": list(change.displaced),
                }
                for change in reversed(self._recent)
            ],
        }
