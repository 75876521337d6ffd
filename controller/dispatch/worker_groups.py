"""Who is alike: workers of one *outfit* differ in nothing but their names.

Whatever depends on what a worker holds is worked out once for an outfit, however many wear it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakValueDictionary


@dataclass(frozen=True, eq=False)
class Outfit:
    """What a worker is and holds; equals are one object.

    Attributes:
        device_class: what it is.
        variant_ids: ready to run, sorted.
        hop_s: price of reaching it, a batch.
    """

    device_class: str
    variant_ids: tuple[str, ...]
    hop_s: float


UNKNOWN = Outfit("", (), 0.0)
"""Of a worker who has not told yet."""


Shelves = dict[Outfit, int]
"""By outfit with a ready variant of a scope, the number of its *shelf*: outfits of equal number are
of one device class, equally far away, and have the same of the scope."""


class Outfits(dict[str, Outfit]):
    """The workers' outfits by id; those that nobody wears are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self._known: WeakValueDictionary[tuple[str, tuple[str, ...], float], Outfit]
        self._known = WeakValueDictionary()

    def put(
        self, worker_id: str, device_class: str, variant_ids: Iterable[str], hop_s: float
    ) -> Outfit:
        """The worker is and holds this; returns what it wears now."""
        key = device_class, tuple(sorted(variant_ids)), hop_s
        outfit = self._known.get(key)
        if outfit is None:
            outfit = self._known[key] = Outfit(*key)
        self[worker_id] = outfit
        return outfit

    def shelves(self, ids: frozenset[str]) -> Shelves:
        """Who holds any of these variants."""
        found: Shelves = {}
        numbers: dict[tuple[str, float, frozenset[str]], int] = {}
        for outfit in dict.fromkeys(self.values()):
            held = ids.intersection(outfit.variant_ids)
            if held:
                shelf = (outfit.device_class, outfit.hop_s, held)
                found[outfit] = numbers.setdefault(shelf, len(numbers))
        return found

    def carry_over(self, before: Outfit, after: Outfit, known: Iterable[Shelves]) -> None:
        """A worker has changed its outfit, but not in anything of these shelves' scopes."""
        is_worn = before in self.values()
        for shelves in known:
            shelf = shelves.get(before)
            if shelf is not None:
                shelves[after] = shelf
                if not is_worn:
                    del shelves[before]
