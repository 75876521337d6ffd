"""The start of a gateway or a worker: when it may serve.

Ray Serve sends queries to a replica, and drains the one that it replaces, once its constructor is
done. So the constructor waits here until the replica can serve: until what it needs is loaded, and
until it serves all that the one does whose place it takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from modelless.controller.control.messages import Replica
from modelless.controller.live.cluster.release import ProtocolError
from modelless.controller.live.orders import Orders

logger = logging.getLogger(__name__)

FIRST_ANSWER_S = 5.0
"""Patience for the control loop's first answer: without one, serving begins all the same."""

MOST_S = 120.0
"""Patience for what a predecessor serves; then it serves with what it has."""

FIRST_LOADS_S, NO_LOAD_S = 30.0, 10.0
"""Patience of a replica without a predecessor: for loads, and while nothing is loaded anywhere."""

LOOK_S = 0.05


class Successor:
    """Tells the control loop what this process is, and learns from it when it may serve.

    Args:
        release: the code and settings that it runs.
        rollout: the deployment of its application that started it.

    Attributes:
        revision: of the settings that this process goes by.
    """

    def __init__(self, release: str = "", rollout: str = "") -> None:
        self._began_s = time.time()
        self._release = release
        self._rollout = rollout
        self._is_starting = bool(rollout)
        self._heard = asyncio.Event()
        self._loads_s = 0.0  # when something was being loaded
        self._orders: Orders | None = None
        self._refusal: ProtocolError | None = None
        self.revision = 0

    @property
    def replica(self) -> Replica:
        """The part of every report that says what this process is."""
        return Replica(
            self._release, self._rollout, self._began_s, self._is_starting, self.revision
        )

    def on_orders(self, orders: Orders) -> None:
        """The control loop has answered a report."""
        if self._is_starting:
            self._orders = orders
            if any(member.get("loading") for member in orders.status.get("members", ())):
                self._loads_s = time.monotonic()
            self._heard.set()

    def on_failure(self, error: Exception) -> None:
        """The control loop has not answered, or has refused."""
        if isinstance(error, ProtocolError):
            self._refusal = error
            self._heard.set()

    async def wait(
        self,
        is_ready: Callable[[], bool] = lambda: True,
        first_answer_s: float = FIRST_ANSWER_S,
        most_s: float = MOST_S,
    ) -> None:
        """Wait until this process may serve, or until patience ends.

        Args:
            is_ready: whether it could serve, apart from the variants that it is to hold.
            first_answer_s, most_s: patience with the control loop, and with loads.

        Raises:
            ProtocolError: the control loop is of another release and refuses its reports.
        """
        try:
            await asyncio.wait_for(self._heard.wait(), first_answer_s)
        except TimeoutError:
            logger.warning("serving begins without an answer from the control loop")
        if self._refusal is not None:
            raise self._refusal
        began_s = self._loads_s = time.monotonic()
        while (orders := self._orders) is not None and (orders.lacking or not is_ready()):
            now_s = time.monotonic()
            waited_s = now_s - began_s
            is_first = not orders.predecessor_id
            if waited_s > most_s or (
                is_first and (waited_s > FIRST_LOADS_S or now_s - self._loads_s > NO_LOAD_S)
            ):
                missing = ", ".join(orders.lacking) or "a variant of every task"
                logger.warning("serving begins without what it was to hold: %s", missing)
                break
            await asyncio.sleep(LOOK_S)
        self._is_starting, self._orders = False, None
