"""A driver of the device machine for tests: it keeps the effects, and answers when a test says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from modelless.controller.control.messages import PlanEffect
from modelless.controller.device.machine import Device
from modelless.controller.device.messages import (
    BatchEnded,
    BatchHandedIn,
    Effect,
    Event,
    Free,
    FreeEnded,
    LoadEnded,
    LoadFailed,
    LoadInstance,
    Ordered,
    ResizeWorker,
    StartLoad,
    Tick,
    UnloadInstance,
)
from modelless.policies.reasons import Reason

A, B, C = "t/a/x@1", "t/b/x@1", "t/c/x@1"
SMALL, LARGE = "cpu-1", "cpu-2"
_Kind = TypeVar("_Kind")


def load(variant_id: str, reason: Reason = Reason.WANTED) -> LoadInstance:
    return LoadInstance("w", variant_id, reason)


def unload(variant_id: str, for_variant_id: str = "") -> UnloadInstance:
    return UnloadInstance("w", variant_id, Reason.ROOM_NEEDED, for_variant_id)


RESIZE = ResizeWorker("w", LARGE, Reason.OPTIMISED)


class Driver:
    """A device, a clock that stands still, and what the device asked for.

    Args:
        memory_bytes: of the device.
        named: other arguments of the device.
    """

    def __init__(self, memory_bytes: int = 100, **named: Any) -> None:
        self.now_s = 0.0
        self.device = Device("w", SMALL, memory_bytes, 0.0, sizes=(SMALL, LARGE), **named)
        self.effects: list[Effect] = []
        self._next_batch_id = 0

    def handle(self, event: Event) -> list[Effect]:
        effects = self.device.handle(event, self.now_s)
        self.effects += effects
        return effects

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        """The effects of a kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def order(
        self,
        *effects: PlanEffect,
        in_use: Collection[str] = (),
        sizes: Mapping[str, float] | None = None,
    ) -> list[Effect]:
        """Send orders; ``sizes``: expected bytes of the variants, on both device classes."""
        sizes = sizes or {}
        orders = [
            each._replace(memory_bytes=sizes.get(each.variant_id, 0))
            if isinstance(each, LoadInstance)
            else each._replace(memory_bytes=sizes)
            if isinstance(each, ResizeWorker)
            else each
            for each in effects
        ]
        return self.handle(Ordered(orders, in_use))

    def end_load(self, memory_bytes: int = 10) -> list[Effect]:
        """The load that runs ends."""
        return self.handle(LoadEnded(self.of(StartLoad)[-1].copy_id, memory_bytes, 0.5))

    def fail_load(self, problem: str = "no such operator") -> list[Effect]:
        """The load that runs fails."""
        return self.handle(LoadFailed(self.of(StartLoad)[-1].copy_id, problem))

    def hold(self, *names: str, size: int = 10) -> None:
        """Load these, one after the other."""
        for name in names:
            self.order(load(name))
            self.end_load(size)

    def hand_in(self, variant_id: str, expected_s: float = 0.0, patience_s: float = 1e9) -> int:
        """Send a batch; returns its id."""
        self._next_batch_id += 1
        self.handle(BatchHandedIn(self._next_batch_id, variant_id, expected_s, patience_s))
        return self._next_batch_id

    def end_batch(self, batch_id: int, busy_s: float = 0.0) -> list[Effect]:
        return self.handle(BatchEnded(batch_id, busy_s))

    def end_frees(self) -> None:
        """Everything that is to be freed is."""
        for free in self.of(Free):
            self.effects.remove(free)
            self.handle(FreeEnded(free.copy_id, 0.01))

    def tick(self) -> list[Effect]:
        return self.handle(Tick())

    @property
    def loads(self) -> list[tuple[str, str]]:
        """Variant and device class of each load that was started."""
        return [(effect.variant_id, effect.device_class) for effect in self.of(StartLoad)]
