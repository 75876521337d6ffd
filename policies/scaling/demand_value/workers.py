"""How many workers: as many as demand is worth the rent of, and fewer only once that has paid.

More come at once. Fewer are wanted only when the rent paid for idle ones has reached what starting
them again would lose: the break-even rule of ski rental (Karlin et al., Algorithmica 1988), which
without any forecast never costs more than twice what hindsight would.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf


class WorkerCounts:
    """Remembers, by device class, the rent paid for each worker since it was last needed.

    Workers are alike, so the n-th is the one that is idle while fewer than n are needed.
    """

    def __init__(self) -> None:
        self._idle_usd: dict[str, list[float]] = {}
        self._seen_s: float | None = None

    def wanted(
        self,
        now_s: float,
        present: Mapping[str, int],
        needed: Mapping[str, int],
        rent_usd_per_s: Mapping[str, float],
        start_loss_usd: Mapping[str, float],
    ) -> dict[str, int]:
        """Wanted workers by class.

        Args:
            present: workers that are there.
            needed: workers that demand is worth.
            rent_usd_per_s: of one worker.
            start_loss_usd: what is lost while one worker starts.
        """
        seen_s, self._seen_s = self._seen_s, now_s
        span_s = now_s - seen_s if seen_s is not None and 0.0 <= now_s - seen_s < inf else 0.0
        wanted = {}
        for name, count in sorted(needed.items()):
            known = self._idle_usd.get(name, [])
            paid_usd = rent_usd_per_s.get(name, 0.0) * span_s
            idle_usd = [
                0.0 if n < count else paid_usd + (known[n] if n < len(known) else 0.0)
                for n in range(present.get(name, 0))
            ]
            loss_usd = start_loss_usd.get(name, 0.0)
            kept = sum(usd <= loss_usd for usd in idle_usd[count:])
            self._idle_usd[name] = idle_usd
            wanted[name] = count + kept
        return wanted
