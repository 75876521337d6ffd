"""A device on its way to another size: what is loaded again so far; see ``core/resizing``."""

from __future__ import annotations

from collections.abc import Iterable

from modelless.variants.runtimes import LoadedVariant
from modelless.variants.vocabulary import DeviceClass, Variant


class Resizing:
    """Loads under way for a device that is to become one of another class.

    Args:
        device_class: what it is to become.
        variants: what it takes along, in the order in which it is loaded.

    Attributes:
        missing: what is still to be loaded, by variant id.
        loaded: what is, by variant id.
        failed: what could not be, and why, by variant id.
    """

    def __init__(self, device_class: DeviceClass, variants: Iterable[Variant]) -> None:
        self.device_class = device_class
        self.missing = {variant.id: variant for variant in variants}
        self.loaded: dict[str, LoadedVariant] = {}
        self.failed: dict[str, str] = {}

    def take(self, variant: Variant, loaded: LoadedVariant | Exception) -> None:
        """A load has ended, one way or the other."""
        del self.missing[variant.id]
        if isinstance(loaded, Exception):
            self.failed[variant.id] = str(loaded)
        else:
            self.loaded[variant.id] = loaded
