"""Upgrades: which new replica succeeds which old one, and what it loads before it serves.

Ray Serve replaces a deployment's replicas one after the other: it starts a new one beside the old
ones, and drains an old one once the new one is ready. So each replica that starts is the successor
of one of another rollout in its pool: the first to start succeeds the one that began first. It is
ready when it holds what its predecessor serves. As Serve may drain another one first, it also loads
what is left in the pool that no other new replica has, as far as its memory goes.

These are plain functions of the members' reports: a control loop that starts anew in the midst of
an upgrade goes on with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from modelless.controller.control.messages import MemberReport
from modelless.controller.control.planned_memory import expected_bytes
from modelless.controller.device.messages import LoadInstance
from modelless.policies.reasons import Reason
from modelless.policies.views import VariantFacts

MOST_ROLLOUT_S = 600.0
"""The longest that an upgrade is waited for: a stalled one must not hold up scaling for good."""


def predecessors(members: Iterable[MemberReport]) -> dict[str, MemberReport]:
    """Return the predecessor of each replica that starts in another's place, by its member id."""
    oldest_first = sorted(members, key=lambda each: (each.replica.began_s, each.member_id))
    found: dict[str, MemberReport] = {}
    succeeded: set[str] = set()
    for successor in oldest_first:
        if not successor.replica.is_starting:
            continue
        for old in oldest_first:
            if (
                old.pool == successor.pool
                and old.replica.rollout != successor.replica.rollout
                and not old.replica.is_starting
                and old.member_id not in succeeded
            ):
                found[successor.member_id] = old
                succeeded.add(old.member_id)
                break
    return found


def lacking(
    successor: MemberReport, predecessor: MemberReport, members: Iterable[MemberReport]
) -> tuple[str, ...]:
    """Return the variants that the successor must load before an old replica may go, sorted.

    What it failed to load is not among them.
    """
    left: dict[str, int] = {}
    served = predecessor.ready_bytes
    kept = set(served)
    for other in members:
        if other.pool != successor.pool or other.member_id == successor.member_id:
            continue
        if other.replica.rollout == successor.replica.rollout:
            kept |= other.ready_bytes.keys()
        else:
            left.update(other.ready_bytes)
    budget_bytes = successor.state.memory_bytes if successor.state is not None else 0
    wanted, room_bytes = set(served), budget_bytes - sum(served.values())
    for variant_id in sorted(left.keys() - kept):
        if left[variant_id] <= room_bytes:
            wanted.add(variant_id)
            room_bytes -= left[variant_id]
    return tuple(sorted(wanted - successor.ready_bytes.keys() - successor.failed_loads.keys()))


def successor_loads(
    members: Collection[MemberReport], facts: Mapping[str, VariantFacts]
) -> list[LoadInstance]:
    """Return the loads that successors need. A load that has begun already may be among them.

    As much memory is set aside as a member of the same device class holds. If none does, it is the
    most that any member holds or that is expected.
    """
    found = predecessors(members)
    if not found:
        return []
    held: dict[tuple[str, str], int] = {}  # by variant and device class; of any class: ""
    for each in members:
        of_class = each.state.device_class if each.state is not None else ""
        for name, size_bytes in each.ready_bytes.items():
            for key in ((name, of_class), (name, "")):
                held[key] = max(size_bytes, held.get(key, 0))
    loads = []
    for member in members:
        if member.member_id not in found:
            continue
        of_class = member.state.device_class if member.state is not None else ""
        for name in lacking(member, found[member.member_id], members):
            known = held.get((name, of_class))
            if known is None:
                expected = expected_bytes(facts.get(name), of_class)
                known = max(held[name, ""], int(expected) if expected < inf else 0)
            loads.append(LoadInstance(member.member_id, name, Reason.SUCCESSION, known))
    return loads


@dataclass(slots=True)
class RolloutWatch:
    """Whether replicas are being replaced now: a bad time to unload or to scale anything.

    Attributes:
        since_s: since when members of several rollouts are in one pool; infinite if they are not.
    """

    since_s: float = inf

    def is_under_way(self, members: Iterable[MemberReport], now_s: float) -> bool:
        """Whether a rollout is under way, for ``MOST_ROLLOUT_S`` at most."""
        rollouts = {(member.pool, member.replica.rollout) for member in members}
        if len(rollouts) == len({pool for pool, _ in rollouts}):
            self.since_s = inf
            return False
        self.since_s = min(self.since_s, now_s)
        return now_s - self.since_s < MOST_ROLLOUT_S
