"""The versions in service, between the store and the control machine.

The store's pointer is read a few times a second, which costs one small query. A change reaches
every gateway and worker at once, because each has a call waiting for it (as Ray Serve's own long
polls do). Changes made by the command line and those made by a trial's evidence go the same way.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from modelless.common.errors import ModellessError
from modelless.controller.control.messages import (
    KeepEvidence,
    PromoteVersion,
    VersionEffect,
    VersionsChanged,
)
from modelless.controller.control.served_versions import Service
from modelless.variants.registry.promotion import (
    end_trial,
    keep_evidence,
    read_change,
    read_evidence,
    read_lines,
)
from modelless.variants.registry.registry import open_registry
from modelless.variants.registry.versions import Line

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.2
"""How often the store is asked whether a version changed."""

WATCH_S: Final = 3.0
"""How long a call waits for a change before it comes back with nothing new."""

MODELLESS: Final = "modelless"
"""The author of a change that no command asked for."""


class VersionStore:
    """Reads which versions are in service, and carries out what becomes of trials.

    Args:
        started_with: the current version of every variant that is served, by name: a variant that
            is not promoted stays with it, whatever is registered meanwhile.
        on_change: called with what was read whenever it changed.

    Raises:
        StoreError: the store cannot be read.
    """

    def __init__(
        self,
        home: Path,
        started_with: Mapping[str, int],
        on_change: Callable[[VersionsChanged], None],
    ) -> None:
        self._store = open_registry(home).store
        self._started_with = dict(started_with)
        self._on_change = on_change
        self._number = -1
        self._to_write: list[VersionEffect] = []
        self._published = asyncio.Event()
        self._accuracies_percent: Mapping[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self.latest = self._read()

    def start(self) -> None:
        """Begin to look at the store; does nothing if that has begun."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_forever())

    async def watch(self, token: str) -> Service:
        """Return the versions in service, as soon as ``token`` does not stand for them."""
        self.start()
        end_s = time.monotonic() + WATCH_S
        while self.latest.service.token == token and (left_s := end_s - time.monotonic()) > 0.0:
            published = self._published
            try:
                await asyncio.wait_for(published.wait(), left_s)
            except TimeoutError:
                break
        return self.latest.service

    def write(self, effect: VersionEffect) -> None:
        """Write the effect at the next look. One that fails is lost: the machine repeats it."""
        self._to_write.append(effect)

    def revise_accuracies(self, percent: Mapping[str, float]) -> None:
        """Publish the accuracies that demoted variants count for, by id."""
        self._accuracies_percent = percent
        revised = replace(self.latest.service, token=uuid.uuid4().hex)
        self._publish(self.latest._replace(service=revised))

    async def look(self) -> None:
        """Write what is to be written, and see whether the store says something new.

        Raises:
            StoreError: the store cannot be read or written.
        """
        effects, self._to_write = self._to_write, []
        for effect in effects:
            await asyncio.to_thread(self._write, effect)
        if await asyncio.to_thread(read_change, self._store) != self._number:
            self._publish(await asyncio.to_thread(self._read))
            self._on_change(self.latest)

    def _publish(self, latest: VersionsChanged) -> None:
        service = replace(latest.service, accuracies_percent=self._accuracies_percent)
        self.latest = latest._replace(service=service)
        self._published.set()
        self._published = asyncio.Event()

    async def _look_forever(self) -> None:
        is_away = False
        while True:
            try:
                await self.look()
                is_away = False
            except ModellessError as error:  # serving goes on while the store is away
                if not is_away:
                    logger.warning("versions stay as they are: %s", error)
                is_away = True
            except Exception:
                logger.exception("a look at the versions failed")
            await asyncio.sleep(LOOK_S)

    def _read(self) -> VersionsChanged:
        lines = read_lines(self._store)
        served = {
            name: lines.by_name[name] if name in lines.changed else Line(name, version)
            for name, version in self._started_with.items()
        }
        service = Service(uuid.uuid4().hex, served)
        kept = {trial.number: read_evidence(self._store, trial) for trial in service.trials}
        evidence = {number: document for number, document in kept.items() if document is not None}
        self._number = lines.number
        return VersionsChanged(service, evidence, time.time())

    def _write(self, effect: VersionEffect) -> None:
        trial = effect.trial
        if isinstance(effect, KeepEvidence):
            keep_evidence(self._store, trial, effect.evidence)
            return
        promoted = isinstance(effect, PromoteVersion)
        told = (MODELLESS, effect.reason, effect.figures)
        if end_trial(self._store, trial, *told, promoted=promoted) is not None:
            end = "promoted" if promoted else "rolled back"
            logger.info("%s: %s, %s", trial.variant_id, end, effect.reason)
