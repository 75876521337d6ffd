"""A device on its way to another size: what is loaded again so far; see ``device/resizing``."""

from __future__ import annotations

from collections.abc import Iterable

from modelless.variants.runtimes import LoadedVariant
from modelless.variants.vocabulary import DeviceClass, Variant


class Resizing:
    """Loads under way for a device that is to become one of another class.

    Args:
        device_class: what it is to become.
        variants: what it takes along, in the order in which it is loaded.
        began_s: when it was to become that.

    Attributes:
        missing: what is still to be loaded, by variant id.
        loaded: what is, by variant id.
        failed: what could not be, and why, by variant id.
    """

    def __init__(
        self, device_class: DeviceClass, variants: Iterable[Variant], began_s: float
    ) -> None:
        self.device_class = device_class
        self.began_s = began_s
        self.missing = {variant.id: variant for variant in variants}
        self.loaded: dict[str, LoadedVariant] = {}
        self.failed: dict[str, str] = {}

    @property
    def loaded_bytes(self) -> int:
        """What was loaded for it so far takes."""
        return sum(loaded.memory_bytes for loaded in self.loaded.values())

    def take_along(self, used: Iterable[LoadedVariant], room_bytes: int) -> bool:
        """Take along what came into use meanwhile, as far as it fits; whether that is anything.

        Under a load that grows, that is the quick variants: just what must not be missing now.
        """
        for loaded in used:
            variant, size_bytes = loaded.variant, loaded.memory_bytes
            known = variant.id in self.loaded or variant.id in self.failed
            if not known and size_bytes <= room_bytes:
                self.missing[variant.id] = variant
                room_bytes -= size_bytes
        return bool(self.missing)

    def take(self, variant: Variant, loaded: LoadedVariant | Exception) -> None:
        """A load has ended, one way or the other."""
        del self.missing[variant.id]
        if isinstance(loaded, Exception):
            self.failed[variant.id] = str(loaded)
        else:
            self.loaded[variant.id] = loaded
