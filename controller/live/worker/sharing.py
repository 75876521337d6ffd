"""A worker that several gateways share: what it has accepted, what it turns back, what it tells.

Each gateway plans with what it knows, and would hand a busy worker a batch as to an idle one. So a
worker accepts one batch beside the one that runs, and that only if it need not wait longer than its
queries can; the rest goes back at once, with the time that the worker is taken for. Every answer
says how long what else was accepted will keep it, so gateways take turns without a word to each
other, and one that finds itself alone may use both places (``dispatch/workers``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from modelless.controller.dispatch.messages import WorkerReport

Tensors = Mapping[str, NDArray[Any]]

MOST_WAITING = 1
"""Batches that wait beside the one that runs: enough for the device never to wait for a hop."""
_LEAST_WAIT_S = 0.001
"""A batch that runs longer than expected keeps the worker at least so long more."""


class TurnedBack(NamedTuple):
    """The batch was not accepted.

    Attributes:
        others_s: how long what was accepted will keep the worker.
        holds: what the worker is and holds, if not what the batch was to run on; else None.
    """

    others_s: float
    holds: WorkerReport | None = None


class Ran(NamedTuple):
    """The batch has run.

    Attributes:
        busy_s, waited_s: how long the device was busy with it, and it had waited before.
        outputs: each query's.
        others_s: how long what else was accepted will keep the worker.
    """

    busy_s: float
    waited_s: float
    outputs: Sequence[Tensors]
    others_s: float


class AcceptedWork:
    """What a worker has accepted and not done, in order.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expected_s: dict[int, float] = {}
        self._began_s = -math.inf  # the first of them
        self._next_ticket = 0

    def accept(self, expected_s: float, patience_s: float) -> int | TurnedBack:
        """A batch comes in; returns a ticket for ``done`` if it is accepted.

        Args:
            expected_s: how long it is expected to run.
            patience_s: how long it may wait before that.
        """
        others_s = self.remaining_s()
        if len(self._expected_s) > MOST_WAITING or not others_s <= max(patience_s, 0.0):
            return TurnedBack(others_s)
        if not self._expected_s:
            self._began_s = self._clock()
        self._next_ticket += 1
        self._expected_s[self._next_ticket] = expected_s
        return self._next_ticket

    def done(self, ticket: int) -> None:
        """The batch has run, or could not."""
        if ticket == next(iter(self._expected_s)):
            self._began_s = self._clock()  # those behind it move up
        del self._expected_s[ticket]

    def remaining_s(self) -> float:
        """How long what was accepted will keep the worker, seconds; 0 if it is idle."""
        if not self._expected_s:
            return 0.0
        first_s, *rest_s = self._expected_s.values()
        runs_s = max(first_s - (self._clock() - self._began_s), _LEAST_WAIT_S)
        return runs_s + sum(rest_s)
