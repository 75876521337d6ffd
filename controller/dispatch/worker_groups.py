"""Worker groups: the workers of one group differ only in their ids.

Results that depend on what a worker holds are computed once for each group, not for each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from weakref import WeakValueDictionary


@dataclass(frozen=True, eq=False)
class WorkerGroup:
    """The properties that the workers of one group share; equal groups are one object.

    Attributes:
        variant_ids: variants that are ready to run, sorted.
        hop_s: time that a batch travels to the worker and back, seconds.
    """

    device_class: str
    variant_ids: tuple[str, ...]
    hop_s: float


NO_GROUP = WorkerGroup("", (), 0.0)
"""The group of a worker that has not reported yet."""


ServingGroups = set[WorkerGroup]
"""The groups that hold a ready variant of one scope."""


class WorkerGroups(dict[str, WorkerGroup]):
    """Each worker's group, by the worker's id. Groups without workers are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self._known: WeakValueDictionary[tuple[str, tuple[str, ...], float], WorkerGroup]
        self._known = WeakValueDictionary()

    def put(
        self, worker_id: str, device_class: str, variant_ids: Iterable[str], hop_s: float
    ) -> WorkerGroup:
        key = device_class, tuple(sorted(variant_ids)), hop_s
        group = self._known.get(key)
        if group is None:
            group = self._known[key] = WorkerGroup(*key)
        self[worker_id] = group
        return group

    def find_serving(self, variant_ids: frozenset[str]) -> ServingGroups:
        """Return the groups that hold any of these variants, which are those of one scope."""
        return {
            group
            for group in dict.fromkeys(self.values())
            if not variant_ids.isdisjoint(group.variant_ids)
        }

    def replace_group(
        self, before: WorkerGroup, after: WorkerGroup, known: Iterable[ServingGroups]
    ) -> None:
        """Note in ``known`` that a worker changed its group, with nothing changed for its scopes.

        Args:
            known: of some scopes; both groups hold the same variants of each.
        """
        has_workers = before in self.values()
        for serving in known:
            if before in serving:
                serving.add(after)
                if not has_workers:
                    serving.remove(before)


class GroupsByScope(dict[str, ServingGroups]):
    """The groups that hold a ready variant of a scope, by scope; found at the first look-up.

    This is a mapping so that a known scope costs no call: an idle worker looks once for each queue.

    Args:
        most: number of scopes to keep; further ones are found each time.
    """

    def __init__(self, find: Callable[[str], ServingGroups], most: int) -> None:
        super().__init__()
        self._find = find
        self._most = most

    def __missing__(self, scope: str) -> ServingGroups:
        found = self._find(scope)
        if len(self) < self._most:
            self[scope] = found
        return found
