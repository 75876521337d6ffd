"""Watches the store for what is in service, and tells the control machine.

It is looked a few times a second whether the store's files changed. If they did, the store is asked
what did, which costs three small queries; a database without files is asked each time. A change
reaches every gateway and worker at once, because each has a call waiting for it (as Ray Serve's own
long polls do). Versions that are promoted by the command line or by a trial's evidence, variants
that are registered, those that are retired or removed, and changes of settings all go this way.
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
from modelless.controller.control.served_versions import Retirements, Service
from modelless.controller.live.settings_revisions import latest_number, read_revision
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
"""How often it is looked whether a version changed."""

ASK_S: Final = 5.0
"""How long a store whose files look unchanged is believed."""

WATCH_S: Final = 3.0
"""How long a call waits for a change before it comes back with nothing new."""

MODELLESS: Final = "modelless"
"""The author of a change that no command asked for."""


class VersionStore:
    """Reads what is in service, and carries out what becomes of trials.

    Args:
        served: the current version of every variant that is served, by name: a variant that is not
            promoted stays with it.
        read_served: reads that anew; called in a thread, when variants were registered or retired.
        on_change: called with what was read whenever it changed.

    Raises:
        StoreError: the store cannot be read.
    """

    def __init__(
        self,
        home: Path,
        served: Mapping[str, int],
        read_served: Callable[[], Mapping[str, int]],
        on_change: Callable[[VersionsChanged], None],
    ) -> None:
        self._store = open_registry(home).store
        self._served = served
        self._read_served = read_served
        self._on_change = on_change
        self._lines: dict[str, Line] = {}
        self._retirements = Retirements()
        self._number, self._seen = read_change(self._store)
        self._revision = latest_number(self._store)
        self._told = self._number, self._seen, self._revision
        self._stamp: object = None
        self._asked_s = 0.0
        self._registered: object = None  # when what is served was read
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
        stamp, now_s = self._store.stamp(), time.monotonic()
        if stamp is None or stamp != self._stamp or now_s > self._asked_s + ASK_S:
            change = await asyncio.to_thread(read_change, self._store)
            self._told = *change, await asyncio.to_thread(latest_number, self._store)
            self._stamp, self._asked_s = stamp, now_s
        number, registered, revision = self._told
        is_over = self._retirements.is_over(time.monotonic())
        if (number, revision) != (self._number, self._revision) or is_over:
            await self._reread()
            self._number, self._revision = number, revision
        # Several variants are registered one after another: their list is read after the last one.
        if registered != self._registered and registered == self._seen:
            served = await asyncio.to_thread(self._read_served)
            if served != self._served:
                self._served = served
                await self._reread()
            self._registered = registered
        self._seen = registered

    def renew(self) -> None:
        """Read at the next look what is served: profiles say more than they did."""
        self._registered = None

    async def _reread(self) -> None:
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
        known = read_lines(self._store)
        lines = {
            name: replace(line, retired=name not in self._served or name not in known.by_name)
            for name, line in {**self._lines, **known.by_name}.items()
        }
        for name, version in self._served.items():
            if name in known.by_name and name not in known.changed:
                lines[name] = Line(name, version)
        self._lines = lines
        latest = read_revision(self._store)
        service = Service(
            uuid.uuid4().hex,
            lines,
            self._retirements.update(lines, time.monotonic()),
            revision=latest.number,
            changes=latest.changes,
        )
        kept = {trial.number: read_evidence(self._store, trial) for trial in service.trials}
        evidence = {number: document for number, document in kept.items() if document is not None}
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
