"""A run's course by time of arrival: what became of queries, what it cost; a bounded series."""

from __future__ import annotations

from typing import Any, Final

MOST_POINTS: Final = 600
"""Of a series, however long the run."""


class Series:
    """Counts by second of arrival; steps double in length whenever there would be too many."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self.step_s = 1.0
        self._most = most
        self._queries: list[int] = []
        self._good: list[int] = []
        self._answered: list[int] = []
        self._accuracy: list[float] = []
        self._cost_usd: list[float] = []
        self._rent_usd_per_s: dict[tuple[float, float], float] = {}

    def add(
        self, arrival_s: float, accuracy: float | None, *, is_good: bool, cost_usd: float = 0.0
    ) -> None:
        """Count a query.

        Args:
            arrival_s: since the world began, seconds.
            accuracy: of its answer, per cent; None if it has none.
            cost_usd: price of the device time that its answer took.
        """
        place = int(arrival_s / self.step_s)
        while place >= self._most:
            self._halve()
            place = int(arrival_s / self.step_s)
        missing = place + 1 - len(self._queries)
        if missing > 0:
            self._queries += [0] * missing
            self._good += [0] * missing
            self._answered += [0] * missing
            self._accuracy += [0.0] * missing
            self._cost_usd += [0.0] * missing
        self._queries[place] += 1
        self._cost_usd[place] += cost_usd
        if is_good:
            self._good[place] += 1
        if accuracy is not None:
            self._answered[place] += 1
            self._accuracy[place] += accuracy

    def rent(self, from_s: float, until_s: float, usd_per_s: float) -> None:
        """A device was there for so long, at that price."""
        known = self._rent_usd_per_s.get((from_s, until_s), 0.0)
        self._rent_usd_per_s[from_s, until_s] = known + usd_per_s

    def figures(self) -> dict[str, Any]:
        """As plain data: the length of a step, and by step the queries, those of them that were
        good and answered, the answers' mean accuracy (None where there are none), the price of
        their device time, and that of all devices which were there in the step."""
        means = [
            round(total / count, 4) if count else None
            for total, count in zip(self._accuracy, self._answered, strict=True)
        ]
        return {
            "step_s": self.step_s,
            "queries": list(self._queries),
            "good": list(self._good),
            "answered": list(self._answered),
            "mean_accuracy": means,
            "cost_usd": list(self._cost_usd),
            "rent_usd": self._rents_usd(),
        }

    def _rents_usd(self) -> list[float]:
        """The price of all devices by step."""
        rents_usd = [0.0] * len(self._queries)
        for (from_s, until_s), usd_per_s in self._rent_usd_per_s.items():
            for place in range(int(from_s / self.step_s), len(rents_usd)):
                begin_s = place * self.step_s
                here_s = min(until_s, begin_s + self.step_s) - max(from_s, begin_s)
                if here_s <= 0.0:
                    break
                rents_usd[place] += here_s * usd_per_s
        return rents_usd

    def _halve(self) -> None:
        self.step_s *= 2.0
        self._queries = _in_pairs(self._queries)
        self._good = _in_pairs(self._good)
        self._answered = _in_pairs(self._answered)
        self._accuracy = _in_pairs(self._accuracy)
        self._cost_usd = _in_pairs(self._cost_usd)


def _in_pairs(values: list[Any]) -> list[Any]:
    sums = [left + right for left, right in zip(values[::2], values[1::2], strict=False)]
    return [*sums, values[-1]] if len(values) % 2 else sums
