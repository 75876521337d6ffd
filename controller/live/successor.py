"""The beginning of a gateway or a worker that may be taking another's place.

Ray Serve drains an old replica once the new one's constructor is done. So the constructor waits
here until the control loop says that what the old one serves is served by the new one too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from modelless.controller.control.succession import Standing
from modelless.controller.live.cluster.release import ProtocolError
from modelless.controller.live.messages import Orders

logger = logging.getLogger(__name__)

FIRST_WORD_S = 5.0
"""Patience for the control loop's first answer: without one, serving begins all the same."""

MOST_S = 120.0
"""Patience for loads; then it serves with what it has."""

LOOK_S = 0.05


class Successor:
    """Tells the control loop what this process is, and hears from it when it may serve.

    Args:
        release: the code and settings that it runs.
        rollout: which deployment of its application it came with.
    """

    def __init__(self, release: str = "", rollout: str = "") -> None:
        self._began_s = time.time()
        self._release = release
        self._rollout = rollout
        self._is_starting = bool(rollout)
        self._heard = asyncio.Event()
        self._orders: Orders | None = None
        self._refusal: ProtocolError | None = None

    @property
    def standing(self) -> Standing:
        """What goes into every report."""
        return Standing(self._release, self._rollout, self._began_s, self._is_starting)

    def on_orders(self, orders: Orders) -> None:
        """The control loop has answered a report."""
        if self._is_starting:
            self._orders = orders
            self._heard.set()

    def on_failure(self, error: Exception) -> None:
        """The control loop has not answered, or has refused."""
        if isinstance(error, ProtocolError):
            self._refusal = error
            self._heard.set()

    async def wait(
        self,
        is_ready: Callable[[], bool] = lambda: True,
        first_word_s: float = FIRST_WORD_S,
        most_s: float = MOST_S,
    ) -> None:
        """Wait until this process may serve: at once, if it takes nobody's place.

        Args:
            is_ready: whether it could serve, besides holding what it is to hold.
            first_word_s, most_s: patience with the control loop, and with loads.

        Raises:
            ProtocolError: the control loop is of another release: it could not be led by it.
        """
        try:
            await asyncio.wait_for(self._heard.wait(), first_word_s)
        except TimeoutError:
            logger.warning("serving begins without a word from the control loop")
        if self._refusal is not None:
            raise self._refusal
        end_s = time.monotonic() + most_s
        while not self._may_serve(is_ready):
            if time.monotonic() > end_s:
                missing = ", ".join(self._orders.lacking) if self._orders is not None else ""
                logger.warning("serving begins without what it was to take over: %s", missing)
                break
            await asyncio.sleep(LOOK_S)
        self._is_starting, self._orders = False, None

    def _may_serve(self, is_ready: Callable[[], bool]) -> bool:
        orders = self._orders
        return orders is None or not orders.predecessor_id or (not orders.lacking and is_ready())
