"""What error of the predictions is usual among workers of a class: the median, always at hand.

Asked once a batch, so that it must not cost a look at every worker: with a thousand of them that
was more than all else that a batch takes.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class UsualErrors:
    """One error for each of some workers, in order, by device class.

    To put and to drop one take a search and a shift within a list of floats.
    """

    def __init__(self) -> None:
        self._sorted: dict[str, list[float]] = {}
        self._of: dict[str, tuple[str, float]] = {}

    def put(self, worker_id: str, device_class: str, error: float) -> None:
        """Count the worker's error, in place of its earlier one."""
        self.drop(worker_id)
        self._of[worker_id] = device_class, error
        insort(self._sorted.setdefault(device_class, []), error)

    def drop(self, worker_id: str) -> None:
        """Do not count the worker any more, if it was counted."""
        known = self._of.pop(worker_id, None)
        if known is not None:
            device_class, error = known
            errors = self._sorted[device_class]
            del errors[bisect_left(errors, error)]

    def median(self, device_class: str) -> float | None:
        """The median of the class's errors; None if there are none."""
        errors = self._sorted.get(device_class)
        if not errors:
            return None
        middle = len(errors) // 2
        if len(errors) % 2:
            return errors[middle]
        return (errors[middle - 1] + errors[middle]) / 2.0
