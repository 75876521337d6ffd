"""Follows what is in service, in a gateway, a pool's worker or the control loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from modelless.common.errors import ModellessError
from modelless.controller.control.served_versions import Service
from modelless.controller.live.knowledge import Knowledge, Rereader

logger = logging.getLogger(__name__)

Watch = Callable[[str], Awaitable[Service]]
_AGAIN_S = 0.5


class VersionFollower:
    """Keeps a process's knowledge and what is in service up to date.

    Args:
        reread: reads it anew; called in a thread, when something is in service that was registered
            since, or that had no profile and now has more of it.
        on_service: called with the versions in service, as soon as they change.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        reread: Rereader,
        watch: Watch,
        on_service: Callable[[Service], None],
        on_knowledge: Callable[[Knowledge], None],
    ) -> None:
        self._knowledge = knowledge
        self._reread = reread
        self._watch = watch
        self._on_service = on_service
        self._on_knowledge = on_knowledge
        self._token = ""
        self._servable = knowledge.servable().variant_ids
        self._unprofiled: frozenset[str] = frozenset()  # when they were first wanted
        self._seen: dict[str, int] = {}  # points of these in the store, at the last look
        self._learned: dict[str, int] = {}  # and when it was read

    async def follow_forever(self) -> None:
        """Ends only when it is cancelled."""
        while True:
            try:
                service = await self._watch(self._token)
                if service.token != self._token:
                    self._on_service(service)  # first: what was taken back must not wait for this
                await self._learn(service)
                self._token = service.token
            except ModellessError as error:
                logger.warning("new versions wait: %s", error)
                await asyncio.sleep(_AGAIN_S)
            except Exception as error:  # noqa: BLE001  (serving goes on without a control loop)
                logger.debug("the control loop does not tell the versions: %s", error)
                await asyncio.sleep(_AGAIN_S)

    async def _learn(self, service: Service) -> None:
        known = self._knowledge.catalog.versions
        is_new = any(variant_id not in known for variant_id in service.in_service)
        points = await self._count_points(service)
        is_profiled = self._is_profiled_further(points)
        self._seen = points
        if not is_profiled and not is_new:
            return
        newer = await asyncio.to_thread(self._reread)
        self._knowledge = self._knowledge.grown_by(newer, service)
        self._servable = self._knowledge.servable().variant_ids
        self._learned = points
        self._on_knowledge(self._knowledge)

    async def _count_points(self, service: Service) -> dict[str, int]:
        """The store's points of what is in service and was not profiled when that began."""
        wanted = service.in_service
        self._unprofiled = (self._unprofiled & wanted) | (wanted - self._servable)
        if not self._unprofiled:
            return {}
        return await asyncio.to_thread(self._reread.count_points, self._unprofiled)

    def _is_profiled_further(self, points: Mapping[str, int]) -> bool:
        """Whether to read the store: at a version's first points, and when no more come.

        Profiling writes point after point, and what was learnt online is lost with each reading.
        """
        more = {name for name, count in points.items() if count > self._learned.get(name, 0)}
        return bool(more) and (points == self._seen or not more <= self._learned.keys())
