"""Versions in the control loop: watches the store for changes, publishes them, judges trials.

The store's pointer is looked at a few times a second, which costs one small query; what changed
reaches every gateway and worker at once, because each has a call waiting for it (as Ray Serve's own
long polls do). A change that somebody makes by the command line and one that a trial's evidence
makes go the same way.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from modelless.common.errors import ModellessError
from modelless.controller.control.canary_verdict import (
    Decision,
    TrialEvidence,
    Verdict,
    figures_of,
    judge,
    status_of,
)
from modelless.controller.control.service import Service
from modelless.controller.dispatch.trials import TrialCounts
from modelless.variants.registry.promotion import (
    Lines,
    end_trial,
    keep_evidence,
    read_change,
    read_evidence,
    read_lines,
)
from modelless.variants.registry.registry import open_registry
from modelless.variants.registry.versions import Line, Trial
from modelless.variants.store import Store

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.2
"""How often the store is asked whether a version changed."""

WATCH_S: Final = 3.0
"""How long a call waits for a change before it comes back with nothing new."""

KEEP_S: Final = 5.0
"""How often a trial's evidence is written down: what a killed control loop may lose."""

JUDGE_S: Final = 1.0
MODELLESS: Final = "modelless"
"""Who made a change that nobody asked for by a command."""


class VersionKeeper:
    """Which versions are in service, and what becomes of those on trial.

    Args:
        home: where the store is.
        started_with: the current version of every variant that is served, by name: what nobody
            promotes stays so, whatever is registered meanwhile.
    """

    def __init__(self, home: Path, started_with: Mapping[str, int]) -> None:
        self._store = open_registry(home).store
        self._started_with = dict(started_with)
        lines = read_lines(self._store)
        self._number = lines.number
        self.service = self._service(lines)
        self._evidence = {
            trial.number: _evidence_kept(self._store, trial) for trial in self.service.trials
        }
        self._published = asyncio.Event()
        self._verdicts: dict[int, Verdict] = {}
        self._failed_loads: dict[str, str] = {}
        self._judged_s = self._kept_s = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look at the store; does nothing if that has begun."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_forever())

    async def watch(self, token: str) -> Service:
        """What is in service, as soon as it is something else than ``token`` stands for."""
        self.start()
        end_s = time.monotonic() + WATCH_S
        while self.service.token == token and (left_s := end_s - time.monotonic()) > 0.0:
            published = self._published
            try:
                await asyncio.wait_for(published.wait(), left_s)
            except TimeoutError:
                break
        return self.service

    def take(self, counts: Iterable[TrialCounts], failed_loads: Mapping[str, str]) -> None:
        """What a member counted of trials, and could not load."""
        for each in counts:
            evidence = self._evidence.get(each.number)
            if evidence is not None:
                evidence.add(each)
        self._failed_loads.update(failed_loads)

    def status(self) -> list[dict[str, Any]]:
        """Trials that are on, as plain data."""
        return [self._status_of(trial) for trial in self.service.trials]

    # -- in the background --------------------------------------------------------------------

    async def _look_forever(self) -> None:
        troubled = False
        while True:
            try:
                await self.look(time.monotonic())
                troubled = False
            except ModellessError as error:  # serving goes on while the store is away
                if not troubled:
                    logger.warning("versions stay as they are: %s", error)
                troubled = True
            except Exception:
                logger.exception("a look at the versions failed")
            await asyncio.sleep(LOOK_S)

    async def look(self, now_s: float) -> None:
        """See whether the store says something new, and what trials have shown.

        Args:
            now_s: monotonic.

        Raises:
            StoreError: the store cannot be read or written.
        """
        if await asyncio.to_thread(read_change, self._store) != self._number:
            await self._read()
        if now_s - self._judged_s >= JUDGE_S:
            self._judged_s = now_s
            await self._judge()
        if now_s - self._kept_s >= KEEP_S:
            self._kept_s = now_s
            await self._keep()

    async def _read(self) -> None:
        lines = await asyncio.to_thread(read_lines, self._store)
        service = self._service(lines)
        numbers = {trial.number for trial in service.trials}
        self._evidence = {n: self._evidence.get(n) or TrialEvidence() for n in numbers}
        self._verdicts = {n: each for n, each in self._verdicts.items() if n in numbers}
        self._failed_loads.clear()
        self._number = lines.number
        self.service = service
        self._published.set()
        self._published = asyncio.Event()

    async def _judge(self) -> None:
        for trial in self.service.trials:
            evidence = self._evidence[trial.number]
            failure = self._failed_loads.get(trial.variant_id)
            verdict = judge(trial, evidence, time.time())
            if failure is not None:
                verdict = Verdict(
                    Decision.ROLL_BACK, f"it could not be loaded: {failure}", verdict.guards
                )
            self._verdicts[trial.number] = verdict
            if verdict.decision is Decision.GO_ON:
                continue
            ended = await asyncio.to_thread(
                end_trial,
                self._store,
                trial,
                MODELLESS,
                verdict.reason,
                figures_of(trial, evidence, verdict),
                promoted=verdict.decision is Decision.PROMOTE,
            )
            if ended is not None:
                logger.info("%s: %s, %s", trial.variant_id, verdict.decision, verdict.reason)
            await self._read()

    async def _keep(self) -> None:
        for trial in self.service.trials:
            document = self._evidence[trial.number].document()
            await asyncio.to_thread(keep_evidence, self._store, trial, document)

    def _service(self, lines: Lines) -> Service:
        served = {
            name: lines.by_name[name] if name in lines.changed else Line(name, version)
            for name, version in self._started_with.items()
        }
        return Service(uuid.uuid4().hex, served)

    def _status_of(self, trial: Trial) -> dict[str, Any]:
        evidence = self._evidence[trial.number]
        return status_of(trial, evidence, time.time(), self._verdicts.get(trial.number))


def _evidence_kept(store: Store, trial: Trial) -> TrialEvidence:
    return TrialEvidence.kept(read_evidence(store, trial))
