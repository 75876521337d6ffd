"""A run's course: what became of the queries by when they arrived, in a bounded series."""

from __future__ import annotations

from typing import Any, Final

MOST_POINTS: Final = 600
"""Of a series, however long the run."""


class Series:
    """Counts by second of arrival; steps double in length whenever there would be too many.

    Args:
        most: points.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self.step_s = 1.0
        self._most = most
        self._queries: list[int] = []
        self._good: list[int] = []
        self._answered: list[int] = []
        self._accuracy: list[float] = []

    def add(self, arrival_s: float, accuracy: float | None, *, is_good: bool) -> None:
        """Count a query.

        Args:
            arrival_s: since the world began, seconds.
            accuracy: of its answer, per cent; None if it has none.
            is_good: in time, and accurate enough.
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
        self._queries[place] += 1
        if is_good:
            self._good[place] += 1
        if accuracy is not None:
            self._answered[place] += 1
            self._accuracy[place] += accuracy

    def figures(self) -> dict[str, Any]:
        """As plain data: the length of a step, and by step the queries, those of them that were
        good and answered, and the answers' mean accuracy (None where there are none)."""
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
        }

    def _halve(self) -> None:
        self.step_s *= 2.0
        self._queries = _in_pairs(self._queries)
        self._good = _in_pairs(self._good)
        self._answered = _in_pairs(self._answered)
        self._accuracy = _in_pairs(self._accuracy)


def _in_pairs(values: list[Any]) -> list[Any]:
    sums = [left + right for left, right in zip(values[::2], values[1::2], strict=False)]
    return [*sums, values[-1]] if len(values) % 2 else sums
