"""The device: which variants one worker holds, loads, frees and runs.

A variant is absent, loading, ready or draining. However often it is ordered, it is loaded once. A
batch takes a lease on the copy of the variant that it runs on, and a copy is freed after its last
lease (reference counting). A draining variant that is ordered again before it is freed is ready
again at once. Memory is set aside from the order of a load, where its size is known, and counts
until it is really free. Loads run one at a time, and none starts while memory is about to come
free: so the budget holds at every moment, as far as sizes are known.

Several gateways may share a device. Each plans with what it knows, and would send a busy device a
batch as to an idle one. So the device accepts few batches beside the one that runs, and only those
that can wait for as long as they have to; it turns the others back, with the time for which the
accepted ones will keep it. So gateways take turns without a word to each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, Final, NamedTuple

from modelless.controller.device.load_backoff import LoadBackoff
from modelless.controller.device.load_queue import LoadQueue, QueuedLoad
from modelless.controller.device.messages import (
    BatchEnded,
    BatchHandedIn,
    ChangeKind,
    Effect,
    Event,
    Free,
    FreeEnded,
    LoadEnded,
    LoadFailed,
    LoadInstance,
    NoteResize,
    Ordered,
    ReportReady,
    ResidencyChange,
    ResizeStep,
    ResizeWorker,
    StartBatch,
    StartLoad,
    Tick,
    TurnBatchBack,
    UnloadInstance,
    WakeAt,
)
from modelless.controller.device.resizing import Candidate, Resize, take_along
from modelless.policies.reasons import Reason
from modelless.policies.scopes import scopes_of
from modelless.policies.views import Instance, WorkerState

_LEAST_WAIT_S: Final = 0.001
"""A batch that runs keeps the device for at least so long."""


class _State(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


@dataclass(slots=True, eq=False)
class _Copy:
    """An engine in memory, or the memory set aside for one."""

    copy_id: int
    variant_id: str
    device_class: str  # that it was loaded for
    memory_bytes: int
    load_s: float = 0.0
    leases: int = 0
    is_leaving: bool = False  # it is freed after its last lease
    is_freeing: bool = False


@dataclass(slots=True, eq=False)
class _Resident:
    """A variant that is not absent."""

    copy: _Copy
    state: _State
    last_used_s: float
    is_pinned: bool
    use_count: int = 0
    leaves: tuple[Reason, str] = (Reason.UNWANTED, "")  # why, and for which variant
    figures: tuple[int, float, float, int, bool, bool] | None = None  # of what was told last
    told: Instance | None = None

    def instance(self, worker_id: str, in_use: bool) -> Instance:
        """The variant as planning sees it; the same object until something changes."""
        copy, is_loading = self.copy, self.state is _State.LOADING
        figures = (
            copy.memory_bytes if self.state is _State.READY else 0,
            copy.load_s,
            self.last_used_s,
            self.use_count,
            in_use or is_loading or copy.leases > 0,
            self.is_pinned,
        )
        if self.told is None or figures != self.figures:
            self.figures, self.told = figures, Instance(worker_id, copy.variant_id, *figures)
        return self.told


class _Batch(NamedTuple):
    resident: _Resident
    copy: _Copy
    expected_s: float


class _Loading(NamedTuple):
    copy: _Copy
    reason: Reason
    began_s: float


class Device:
    """The state of one device. ``handle`` changes it; everything else only tells of it.

    Args:
        now_s: the time at which it begins, on the clock of ``handle``.
        sizes: names of the device classes that it may be resized to.
        pinned: scopes whose variants stay once they are loaded.
        pool: the pool that it belongs to; empty for the one called like its class.
        most_waiting: batches that it accepts beside the one that runs.
    """

    def __init__(
        self,
        worker_id: str,
        device_class: str,
        memory_bytes: int,
        now_s: float,
        *,
        sizes: Collection[str] = (),
        pinned: Collection[str] = (),
        pool: str = "",
        most_waiting: float = inf,
    ) -> None:
        self.worker_id = worker_id
        self.memory_bytes = memory_bytes
        self._device_class = device_class
        self._sizes = sizes
        self._pinned = pinned
        self._pool = pool
        self._most_waiting = most_waiting
        self._residents: dict[str, _Resident] = {}
        self._copies: dict[int, _Copy] = {}
        self._copies_made = 0
        self._leaving: set[int] = set()
        self._used_bytes = 0
        self._displaced: defaultdict[str, list[str]] = defaultdict(list)
        self._batches: dict[int, _Batch] = {}
        self._began_s = -inf  # the first of the batches
        self._loads = LoadQueue()
        self._loading: _Loading | None = None
        self._busy_s, self._load_ended_s = 0.0, now_s  # busy with batches since the last load
        self._wake_s = -inf
        self._backoff = LoadBackoff()
        self._failed: dict[str, str] = {}
        self._resize: Resize | None = None
        self._is_changed = False
        self._handlers: dict[type, Callable[[Any, float], list[Effect]]] = {
            BatchHandedIn: self._on_batch_handed_in,
            BatchEnded: self._on_batch_ended,
            Ordered: self._on_ordered,
            LoadEnded: self._on_load_ended,
            LoadFailed: self._on_load_failed,
            FreeEnded: self._on_free_ended,
            Tick: self._on_tick,
        }

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take an event in; returns the effects to carry out, in order.

        Args:
            now_s: when, in seconds on any clock that does not go back.
        """
        return self._handlers[type(event)](event, now_s)

    # -- what there is ------------------------------------------------------------------------

    @property
    def device_class(self) -> str:
        return self._device_class

    @property
    def resizing_to(self) -> str:
        """The class that it is about to become; empty if it stays what it is."""
        return self._resize.device_class if self._resize is not None else ""

    @property
    def ready(self) -> tuple[str, ...]:
        """The variants that batches can run on."""
        residents = self._residents.items()
        return tuple([name for name, it in residents if it.state is _State.READY])

    @property
    def is_empty(self) -> bool:
        """Whether every variant is absent."""
        return not self._residents

    @property
    def in_use(self) -> set[str]:
        """The variants that accepted batches run on or wait for."""
        return {batch.copy.variant_id for batch in self._batches.values()}

    @property
    def batches(self) -> int:
        """How many batches were accepted and have not ended."""
        return len(self._batches)

    @property
    def used_bytes(self) -> int:
        """Memory that is taken or set aside."""
        return self._used_bytes

    @property
    def loading(self) -> tuple[str, float] | None:
        """The variant that loads now, and since when; None if none does."""
        return (self._loading.copy.variant_id, self._loading.began_s) if self._loading else None

    @property
    def failed_loads(self) -> Mapping[str, str]:
        return self._failed

    def remaining_s(self, now_s: float) -> float:
        """Seconds for which the accepted batches will keep the device; 0 if it is idle.

        A batch that is late is expected to be late for as long again. So gateways that are turned
        back by a device that stalls come back ever less often, and take other devices meanwhile.
        """
        if not self._batches:
            return 0.0
        first_s, *rest_s = [batch.expected_s for batch in self._batches.values()]
        left_s = first_s - (now_s - self._began_s)
        return max(left_s, -left_s, _LEAST_WAIT_S) + sum(rest_s)

    def state(self, in_use: Container[str], busy_share: float, now_s: float) -> WorkerState:
        """The device as planning sees it. A variant that is still loading has no size yet.

        Args:
            in_use: variants with queries that run or wait, as far as the driver knows.
            busy_share: the share of the time since the last report in which batches ran, 0 to 1.
        """
        instances = tuple(
            [
                it.instance(self.worker_id, name in in_use)
                for name, it in self._residents.items()
                if it.state is not _State.DRAINING
            ]
        )
        return WorkerState(
            self.worker_id,
            self._device_class,
            self.memory_bytes,
            instances,
            busy_share,
            pool=self._pool,
            resizing_to=self.resizing_to,
            barred=self._backoff.barred(now_s),
        )

    # -- batches ------------------------------------------------------------------------------

    def _on_batch_handed_in(self, event: BatchHandedIn, now_s: float) -> list[Effect]:
        batch_id, variant_id, expected_s, patience_s = event
        resident = self._residents.get(variant_id)
        if resident is None or resident.state is not _State.READY:
            return [TurnBatchBack(batch_id, self.remaining_s(now_s), is_held=False)]
        if not self._batches:
            self._began_s = now_s
        elif patience_s != inf or len(self._batches) > self._most_waiting:
            others_s = self.remaining_s(now_s)
            if len(self._batches) > self._most_waiting or not others_s <= max(patience_s, 0.0):
                return [TurnBatchBack(batch_id, others_s, is_held=True)]
        copy = resident.copy
        copy.leases += 1
        resident.use_count += 1
        resident.last_used_s = now_s
        self._batches[batch_id] = _Batch(resident, copy, expected_s)
        return [StartBatch(batch_id, copy.copy_id)]

    def _on_batch_ended(self, event: BatchEnded, now_s: float) -> list[Effect]:
        if event.batch_id == next(iter(self._batches)):
            self._began_s = now_s  # those behind it move up
        resident, copy, _ = self._batches.pop(event.batch_id)
        copy.leases -= 1
        resident.last_used_s = now_s
        self._busy_s += event.busy_s
        effects: list[Effect] = []
        if copy.is_leaving:
            self._free_if_unused(copy, effects)
        return effects

    # -- orders -------------------------------------------------------------------------------

    def _on_ordered(self, event: Ordered, now_s: float) -> list[Effect]:
        """Obey the orders.

        A variant that came into use since the decision stays, and then the variant that was to take
        its room stays out: the next decision sees both. Nothing is unloaded for a variant that
        failed to load lately.
        """
        effects: list[Effect] = []
        if event.effects:
            self._loads.drop_spare()
        without_room: set[str] = set()
        barred = self._backoff.barred(now_s)
        for order in event.effects:
            if isinstance(order, UnloadInstance):
                if order.for_variant_id in barred or order.variant_id in event.in_use:
                    without_room.add(order.for_variant_id)
                else:
                    self._unload(order.variant_id, order.reason, order.for_variant_id, effects)
            elif isinstance(order, ResizeWorker):
                self._begin_resize(order, event, now_s, effects)
            elif isinstance(order, LoadInstance) and order.variant_id not in without_room:
                self._order_load(order, now_s, effects)
        return self._settle(effects, now_s)

    def _order_load(self, order: LoadInstance, now_s: float, effects: list[Effect]) -> None:
        variant_id, reason = order.variant_id, order.reason
        resident = self._residents.get(variant_id)
        if self._resize is not None or order.device_class not in ("", self._device_class):
            return
        if resident is not None:
            copy = resident.copy
            is_draining = resident.state is _State.DRAINING and not copy.is_freeing
            if is_draining and copy.device_class == self._device_class:
                self._keep(resident)
            return
        load = QueuedLoad(variant_id, reason, order.memory_bytes)
        if not self._loads.is_spare(variant_id, reason):
            if variant_id in self._backoff.barred(now_s):
                return
            if not self._set_aside(load, now_s):
                effects.append(self._refuse(load, now_s))
                return
        self._loads.put(load)

    def _keep(self, resident: _Resident) -> None:
        """Let a draining variant be ready again."""
        resident.state = _State.READY
        resident.copy.is_leaving = False
        self._leaving.discard(resident.copy.copy_id)
        _, for_variant_id = resident.leaves
        if for_variant_id in self._displaced:
            self._displaced[for_variant_id].remove(resident.copy.variant_id)
        self._is_changed = True

    def _unload(
        self, variant_id: str, reason: Reason, for_variant_id: str, effects: list[Effect]
    ) -> None:
        """Let a ready variant take no more batches; free it after those that it has."""
        resident = self._residents.get(variant_id)
        if resident is None or resident.state is not _State.READY:
            return
        resident.state = _State.DRAINING
        resident.leaves = reason, for_variant_id
        if for_variant_id and variant_id not in self._displaced[for_variant_id]:
            self._displaced[for_variant_id].append(variant_id)
        self._let_go(resident.copy, effects)
        self._is_changed = True

    # -- memory -------------------------------------------------------------------------------

    def _set_aside(self, load: QueuedLoad, now_s: float) -> bool:
        """Set memory aside for a load; returns False if there is none.

        Memory that is about to come free counts as free: the load waits for it.
        """
        leaving_bytes = sum([self._copies[copy_id].memory_bytes for copy_id in self._leaving])
        free_bytes = self.memory_bytes - self._used_bytes + leaving_bytes
        if load.memory_bytes > max(free_bytes, 0):
            return False
        copy = self._make_copy(load.variant_id, self._device_class, load.memory_bytes)
        pinned = not set(scopes_of(load.variant_id)).isdisjoint(self._pinned)
        self._residents[load.variant_id] = _Resident(copy, _State.LOADING, now_s, pinned)
        return True

    def _make_copy(self, variant_id: str, device_class: str, memory_bytes: int) -> _Copy:
        self._copies_made += 1
        copy = _Copy(self._copies_made, variant_id, device_class, memory_bytes)
        self._copies[copy.copy_id] = copy
        self._used_bytes += memory_bytes
        return copy

    def _remove_copy(self, copy: _Copy) -> None:
        del self._copies[copy.copy_id]
        self._used_bytes -= copy.memory_bytes

    def _let_go(self, copy: _Copy, effects: list[Effect]) -> None:
        """Free a copy after its last lease."""
        copy.is_leaving = True
        self._leaving.add(copy.copy_id)
        self._free_if_unused(copy, effects)

    def _free_if_unused(self, copy: _Copy, effects: list[Effect]) -> None:
        if not copy.leases:
            copy.is_freeing = True
            effects.append(Free(copy.copy_id))

    def _on_free_ended(self, event: FreeEnded, now_s: float) -> list[Effect]:
        copy = self._copies[event.copy_id]
        self._remove_copy(copy)
        self._leaving.discard(copy.copy_id)
        effects: list[Effect] = []
        resident = self._residents.get(copy.variant_id)
        if resident is not None and resident.copy is copy:  # else a resize has replaced it
            del self._residents[copy.variant_id]
            reason, for_variant_id = resident.leaves
            effects.append(
                ResidencyChange(
                    now_s,
                    self.worker_id,
                    ChangeKind.UNLOADED,
                    copy.variant_id,
                    reason,
                    for_variant_id=for_variant_id,
                    seconds=event.seconds,
                    memory_bytes=copy.memory_bytes,
                )
            )
        return self._settle(effects, now_s)

    # -- loads --------------------------------------------------------------------------------

    def _on_tick(self, event: Tick, now_s: float) -> list[Effect]:
        del event
        self._wake_s = -inf
        return self._settle([], now_s)

    def _settle(self, effects: list[Effect], now_s: float) -> list[Effect]:
        """Start what can start now, and report if other variants are ready than before."""
        if self._loading is None:
            if self._resize is not None:
                self._continue_resize(self._resize, now_s, effects)
            if self._resize is None:
                self._start_next_load(now_s, effects)
        if self._is_changed:
            self._is_changed = False
            effects.append(ReportReady(self._device_class, self.ready))
        return effects

    def _start_next_load(self, now_s: float, effects: list[Effect]) -> None:
        while self._loads and not self._leaving:
            wake_s = self._loads.rest_until_s
            if now_s < wake_s:
                if wake_s != self._wake_s:
                    self._wake_s = wake_s
                    effects.append(WakeAt(wake_s))
                return
            load = self._loads.take()
            resident = self._residents.get(load.variant_id)
            if resident is None:  # it was spare
                if load.variant_id in self._backoff.barred(now_s):
                    continue
                if not self._set_aside(load, now_s):
                    effects.append(self._refuse(load, now_s))
                    continue
                resident = self._residents[load.variant_id]
            elif load.memory_bytes and self._used_bytes > self.memory_bytes:
                # A variant that was to make room for it stays, or takes more than expected.
                del self._residents[load.variant_id]
                self._remove_copy(resident.copy)
                effects.append(self._refuse(load, now_s))
                continue
            self._start_load(resident.copy, self._device_class, load.reason, now_s, effects)
            return

    def _start_load(
        self, copy: _Copy, device_class: str, reason: Reason, now_s: float, effects: list[Effect]
    ) -> None:
        self._loading = _Loading(copy, reason, now_s)
        started = StartLoad(copy.copy_id, copy.variant_id, device_class, copy.memory_bytes, reason)
        effects.append(started)

    def _refuse(self, load: QueuedLoad, now_s: float) -> ResidencyChange:
        return self._note_failure(load.variant_id, load.reason, Reason.NO_ROOM.value, now_s)

    def _note_failure(
        self, variant_id: str, reason: Reason, problem: str, now_s: float
    ) -> ResidencyChange:
        return ResidencyChange(
            now_s,
            self.worker_id,
            ChangeKind.LOAD_FAILED,
            variant_id,
            reason,
            displaced=tuple(self._displaced.pop(variant_id, ())),
            problem=problem,
        )

    def _on_load_ended(self, event: LoadEnded, now_s: float) -> list[Effect]:
        copy, reason = self._end_load(now_s)
        variant_id = copy.variant_id
        self._used_bytes += event.memory_bytes - copy.memory_bytes
        copy.memory_bytes, copy.load_s = event.memory_bytes, event.load_s
        effects: list[Effect] = []
        if self._resize is not None:
            self._resize.missing.remove(variant_id)
            self._resize.loaded[variant_id] = copy.copy_id
        else:
            resident = self._residents[variant_id]
            resident.state, resident.last_used_s = _State.READY, now_s
            self._backoff.succeed(variant_id)
            self._failed.pop(variant_id, None)
            self._is_changed = True
            effects.append(
                ResidencyChange(
                    now_s,
                    self.worker_id,
                    ChangeKind.LOADED,
                    variant_id,
                    reason,
                    displaced=tuple(self._displaced.pop(variant_id, ())),
                    seconds=event.load_s,
                    memory_bytes=event.memory_bytes,
                )
            )
        return self._settle(effects, now_s)

    def _on_load_failed(self, event: LoadFailed, now_s: float) -> list[Effect]:
        copy, reason = self._end_load(now_s)
        variant_id = copy.variant_id
        self._remove_copy(copy)
        effects: list[Effect] = []
        if self._resize is not None:
            self._resize.missing.remove(variant_id)
            self._resize.failed[variant_id] = event.problem
        else:
            del self._residents[variant_id]
            pause_s = self._backoff.fail(variant_id, now_s)
            self._failed[variant_id] = f"{event.problem} (next try in {pause_s:.0f} s)"
            effects.append(self._note_failure(variant_id, reason, event.problem, now_s))
        return self._settle(effects, now_s)

    def _end_load(self, now_s: float) -> tuple[_Copy, Reason]:
        assert self._loading is not None  # noqa: S101  (a load that ends was started)
        (copy, reason, began_s), self._loading = self._loading, None
        busy_share = min(self._busy_s / max(now_s - self._load_ended_s, 1e-9), 1.0)
        self._busy_s, self._load_ended_s = 0.0, now_s
        self._loads.end_load(copy.variant_id, reason, now_s - began_s, now_s, busy_share)
        return copy, reason

    # -- resizing -----------------------------------------------------------------------------

    def _begin_resize(
        self, order: ResizeWorker, event: Ordered, now_s: float, effects: list[Effect]
    ) -> None:
        """Begin to become one of another class; see ``resizing``.

        Nothing happens while a needed load waits, any load runs, or a copy of that class still runs
        a batch from an earlier resize: the control loop asks again.
        """
        becomes = order.device_class
        is_loading = self._loading is not None or self._loads.needed or self._resize is not None
        holds_one = any(self._copies[copy_id].device_class == becomes for copy_id in self._leaving)
        if becomes not in self._sizes or becomes == self._device_class or is_loading or holds_one:
            return
        candidates = [
            Candidate(
                name,
                order.memory_bytes.get(name, it.copy.memory_bytes),
                it.last_used_s if it.use_count else -inf,
                it.copy.leases > 0 or name in event.in_use,
            )
            for name, it in self._residents.items()
            if it.state is _State.READY
        ]
        taken = take_along(candidates, max(self.memory_bytes - self._used_bytes, 0))
        if taken is None:
            failed = NoteResize(becomes, ResizeStep.FAILED, "no room to load its variants twice")
            effects.append(failed)
            return
        self._loads.drop_spare()  # these loads are for the class that it is now
        sizes = {candidate.variant_id: candidate.needed_bytes for candidate in candidates}
        self._resize = Resize(becomes, order.reason, now_s, sizes, list(taken))
        effects.append(NoteResize(becomes, ResizeStep.STARTED))

    def _continue_resize(self, resize: Resize, now_s: float, effects: list[Effect]) -> None:
        """Load what is missing, then what came into use meanwhile; then switch over."""
        used = self._used_since(resize.began_s)
        if not resize.missing:
            # Under a load that grows, the quick variants come into use: they are needed most now.
            free_bytes = self.memory_bytes - self._used_bytes
            for name in used:
                size_bytes = resize.needed_bytes.get(name, inf)
                is_known = name in resize.loaded or name in resize.failed
                if not is_known and size_bytes <= free_bytes:
                    resize.missing.append(name)
                    free_bytes -= int(size_bytes)
        if resize.missing:
            name = resize.missing[0]
            copy = self._make_copy(name, resize.device_class, int(resize.needed_bytes[name]))
            self._start_load(copy, resize.device_class, resize.reason, now_s, effects)
        else:
            self._resize = None
            self._switch_over(resize, used, effects)

    def _used_since(self, since_s: float) -> list[str]:
        """The ready variants that batches have run on since then, or run on now."""
        return [
            name
            for name, it in self._residents.items()
            if it.state is _State.READY
            and (it.copy.leases > 0 or (it.use_count > 0 and it.last_used_s >= since_s))
        ]

    def _switch_over(self, resize: Resize, used: Iterable[str], effects: list[Effect]) -> None:
        """Let the second copies take over; each old one is freed after its last batch."""
        ready = self.ready
        loaded = resize.loaded
        failed = {name: why for name, why in resize.failed.items() if name in ready}
        if failed:
            problem = "; ".join(f"{name}: {why}" for name, why in failed.items())
            effects.append(NoteResize(resize.device_class, ResizeStep.FAILED, problem))
        else:
            self._loads.give_up(set(ready) - loaded.keys() - set(used))
            for name in ready:
                if name in loaded:
                    resident = self._residents[name]
                    self._let_go(resident.copy, effects)
                    resident.copy = self._copies[loaded.pop(name)]
                else:
                    self._unload(name, Reason.UNWANTED, "", effects)
            self._device_class = resize.device_class
            effects.append(NoteResize(resize.device_class, ResizeStep.ENDED))
        for copy_id in loaded.values():  # all in vain, or unloaded meanwhile
            self._let_go(self._copies[copy_id], effects)
        self._is_changed = True
