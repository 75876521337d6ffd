"""Who is alike: workers of one *group* differ in nothing but their names.

Whatever depends on what a worker holds is worked out once for an group, however many wear it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from weakref import WeakValueDictionary


@dataclass(frozen=True, eq=False)
class WorkerGroup:
    """What a worker is and holds; equals are one object.

    Attributes:
        device_class: what it is.
        variant_ids: ready to run, sorted.
        hop_s: price of reaching it, a batch.
    """

    device_class: str
    variant_ids: tuple[str, ...]
    hop_s: float


NO_GROUP = WorkerGroup("", (), 0.0)
"""Of a worker who has not told yet."""


ServingGroups = dict[WorkerGroup, int]
"""By group with a ready variant of a scope, the number of its *equivalence*: groups of equal number are
of one device class, equally far away, and have the same of the scope."""


class WorkerGroups(dict[str, WorkerGroup]):
    """The workers' groups by id; those that nobody wears are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self._known: WeakValueDictionary[tuple[str, tuple[str, ...], float], WorkerGroup]
        self._known = WeakValueDictionary()

    def put(
        self, worker_id: str, device_class: str, variant_ids: Iterable[str], hop_s: float
    ) -> WorkerGroup:
        """The worker is and holds this; returns what it wears now."""
        key = device_class, tuple(sorted(variant_ids)), hop_s
        group = self._known.get(key)
        if group is None:
            group = self._known[key] = WorkerGroup(*key)
        self[worker_id] = group
        return group

    def serving(self, ids: frozenset[str]) -> ServingGroups:
        """Who holds any of these variants."""
        found: ServingGroups = {}
        numbers: dict[tuple[str, float, frozenset[str]], int] = {}
        for group in dict.fromkeys(self.values()):
            held = ids.intersection(group.variant_ids)
            if held:
                equivalence = (group.device_class, group.hop_s, held)
                found[group] = numbers.setdefault(equivalence, len(numbers))
        return found

    def move_worker(
        self, before: WorkerGroup, after: WorkerGroup, known: Iterable[ServingGroups]
    ) -> None:
        """A worker has changed its group, but not in anything of these serving' scopes."""
        is_worn = before in self.values()
        for serving in known:
            equivalence = serving.get(before)
            if equivalence is not None:
                serving[after] = equivalence
                if not is_worn:
                    del serving[before]


class GroupsByScope(dict[str, ServingGroups]):
    """By scope, the groups that hold a ready variant of it; found when first asked for.

    A mapping, so that what is known costs no call: a worker that falls idle looks once a queue.

    Args:
        find: finds them.
        most: scopes that are kept; others are found each time.

    Attributes:
        clear_count: how often all were forgotten. In between, what the workers of an group can serve
            stays the same, though which groups there are does not.
        renumber_count: how often any were forgotten. In between, serving keep their numbers.
    """

    def __init__(self, find: Callable[[str], ServingGroups], most: int) -> None:
        super().__init__()
        self._find = find
        self._most = most
        self.clear_count = self.renumber_count = 0

    def clear(self) -> None:
        """Forget all."""
        self.clear_count += 1
        self.renumber_count += 1
        super().clear()

    def __delitem__(self, scope: str) -> None:
        self.renumber_count += 1
        super().__delitem__(scope)

    def __missing__(self, scope: str) -> ServingGroups:
        found = self._find(scope)
        if len(self) < self._most:
            self[scope] = found
        return found
