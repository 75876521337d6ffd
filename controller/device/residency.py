"""What a device holds: each variant's state, who uses it, and what it really takes.

A variant is absent, loading, ready or draining. It is loaded once however often it is asked for
meanwhile, and freed only after the last batch that runs with it or waits for it: a lease is taken
for each batch, and what is drained goes with its last lease (reference counting). One that is asked
for again before that is ready again at once, and nothing is loaded. Its memory counts until it is
really free.

What cannot be loaded is not tried again at every order: see ``LoadBackoff``.

Plain values and no threads: everything is called from one thread, with the time as an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, field
from enum import StrEnum

from modelless.common.errors import ModellessError
from modelless.controller.device.load_backoff import LoadBackoff
from modelless.policies.scopes import scopes_of
from modelless.policies.views import Instance
from modelless.variants.runtimes import LoadedVariant


class Residence(StrEnum):
    """Where a variant stands. What is absent has no slot."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


@dataclass(slots=True)
class _Slot:
    state: Residence
    since_s: float
    loaded: LoadedVariant | None = None
    leases: int = 0
    last_used_s: float = 0.0
    use_count: int = 0
    is_freeing: bool = False


@dataclass(slots=True)
class Residency:
    """The slots of one device.

    Attributes:
        worker_id: the device's name.
        memory_bytes: what ready and draining variants may fill, as measured.
        pinned: scopes whose variants are to stay once they are there.
        failed: why variants could not be loaded, by id.
    """

    worker_id: str
    memory_bytes: int
    pinned: Collection[str] = ()
    failed: dict[str, str] = field(default_factory=dict)
    _backoff: LoadBackoff = field(default_factory=LoadBackoff)
    _slots: dict[str, _Slot] = field(default_factory=dict)

    # -- coming ---------------------------------------------------------------------------------

    def begin_load(self, variant_id: str, now_s: float) -> bool:
        """Whether the caller is to load it now.

        Not if it is there or on its way, nor if it drains, which ends: then it is ready again. Nor
        while it is being freed, or soon after it could not be loaded.
        """
        slot = self._slots.get(variant_id)
        if slot is not None:
            if slot.state is Residence.DRAINING and not slot.is_freeing:
                slot.state, slot.since_s = Residence.READY, now_s
            return False
        if variant_id in self._backoff.barred(now_s):
            return False
        self._slots[variant_id] = _Slot(Residence.LOADING, now_s)
        return True

    def end_load(self, variant_id: str, loaded: LoadedVariant, now_s: float) -> None:
        """It is loaded and warm."""
        slot = self._slots[variant_id]
        slot.state, slot.since_s, slot.last_used_s = Residence.READY, now_s, now_s
        slot.loaded = loaded
        self._backoff.loaded(variant_id)
        self.failed.pop(variant_id, None)

    def fail_load(self, variant_id: str, reason: str, now_s: float) -> None:
        """It could not be loaded."""
        del self._slots[variant_id]
        pause_s = self._backoff.failed(variant_id, now_s)
        self.failed[variant_id] = f"{reason} (next try in {pause_s:.0f} s)"

    def barred(self, now_s: float) -> frozenset[str]:
        """What could not be loaded and is not to be tried again yet."""
        return self._backoff.barred(now_s)

    # -- in use ---------------------------------------------------------------------------------

    def acquire(self, variant_id: str, now_s: float) -> LoadedVariant:
        """Take a lease for a batch: it is not freed before ``release``.

        Raises:
            ModellessError: it is not ready here.
        """
        slot = self._slots.get(variant_id)
        if slot is None or slot.loaded is None or slot.state is not Residence.READY:
            raise ModellessError(
                f"{variant_id} is not ready in {self.worker_id}: it was unloaded, or never was. "
                "Send the query again: it is given to what serves it now."
            )
        slot.leases += 1
        slot.use_count += 1
        slot.last_used_s = now_s
        return slot.loaded

    def release(self, variant_id: str, now_s: float) -> LoadedVariant | None:
        """End a lease; returns what is to be freed with it, if it was the last of a drained one."""
        slot = self._slots[variant_id]
        slot.leases -= 1
        slot.last_used_s = now_s
        return self._to_free(slot)

    def replace(self, variant_id: str, loaded: LoadedVariant) -> LoadedVariant:
        """Let what is ready run on ``loaded`` from now on; returns what it ran on before.

        That is to be freed after the batches that were handed out for it.
        """
        slot = self._slots[variant_id]
        assert slot.loaded is not None  # noqa: S101  (it is ready)
        before, slot.loaded = slot.loaded, loaded
        return before

    # -- going ----------------------------------------------------------------------------------

    def drain(self, variant_id: str, now_s: float) -> LoadedVariant | None:
        """Take it out of reach; returns what is to be freed now, None if something still uses it.

        What is loading, or not there, is left alone.
        """
        slot = self._slots.get(variant_id)
        if slot is None or slot.state is not Residence.READY:
            return None
        slot.state, slot.since_s = Residence.DRAINING, now_s
        return self._to_free(slot)

    def end_free(self, variant_id: str) -> None:
        """What ``release`` or ``drain`` gave out is freed."""
        del self._slots[variant_id]

    def _to_free(self, slot: _Slot) -> LoadedVariant | None:
        if slot.state is Residence.DRAINING and slot.leases == 0:
            slot.is_freeing = True
            return slot.loaded
        return None

    # -- what there is --------------------------------------------------------------------------

    @property
    def ready(self) -> tuple[str, ...]:
        """Variants that can be used."""
        return tuple(n for n, slot in self._slots.items() if slot.state is Residence.READY)

    def is_ready(self, variant_id: str) -> bool:
        """Whether the variant can be used."""
        slot = self._slots.get(variant_id)
        return slot is not None and slot.state is Residence.READY

    def is_absent(self, variant_id: str) -> bool:
        """Whether the variant is neither there nor on its way, nor leaving."""
        return variant_id not in self._slots

    def used_since(self, since_s: float) -> list[LoadedVariant]:
        """What can be used and was since then, or is now."""
        return [
            slot.loaded
            for slot in self._slots.values()
            if slot.loaded is not None
            and slot.state is Residence.READY
            and (slot.leases > 0 or (slot.use_count > 0 and slot.last_used_s >= since_s))
        ]

    @property
    def states(self) -> dict[str, Residence]:
        """Every variant that is not absent."""
        return {name: slot.state for name, slot in self._slots.items()}

    @property
    def is_draining(self) -> bool:
        """Whether memory is about to become free."""
        return any(slot.state is Residence.DRAINING for slot in self._slots.values())

    @property
    def used_bytes(self) -> int:
        """What is taken, as measured; what is loading was not measured yet."""
        return sum(s.loaded.memory_bytes for s in self._slots.values() if s.loaded is not None)

    @property
    def free_bytes(self) -> int:
        """What is left of the budget; 0 if it is overdrawn."""
        return max(self.memory_bytes - self.used_bytes, 0)

    @property
    def excess_bytes(self) -> int:
        """How far beyond the budget what is held has turned out to be; 0 if it is not."""
        return max(self.used_bytes - self.memory_bytes, 0)

    def leases(self, variant_id: str) -> int:
        """Batches that run with it or wait for it."""
        slot = self._slots.get(variant_id)
        return slot.leases if slot is not None else 0

    def is_pinned(self, variant_id: str) -> bool:
        """Whether an operator wants it kept."""
        return not set(scopes_of(variant_id)).isdisjoint(self.pinned)

    def instances(self, in_use: Container[str]) -> tuple[Instance, ...]:
        """What planning needs to know of each that is ready or loading.

        Args:
            in_use: variants with queries running or waiting, as far as the caller knows.
        """
        return tuple(
            Instance(
                self.worker_id,
                name,
                slot.loaded.memory_bytes if slot.loaded is not None else 0,
                slot.loaded.load_s if slot.loaded is not None else 0.0,
                slot.last_used_s if slot.loaded is not None else slot.since_s,
                slot.use_count,
                in_use=name in in_use or slot.leases > 0 or slot.state is not Residence.READY,
                pinned=self.is_pinned(name),
            )
            for name, slot in self._slots.items()
            if slot.state is not Residence.DRAINING
        )
