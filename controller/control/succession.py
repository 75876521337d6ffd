"""Who takes whose place while a cluster is upgraded, and what it must hold before it may.

Ray Serve replaces a deployment's replicas one after the other: a new one is started beside the old
ones, and once that is ready one of those is drained. So each process that starts is the heir of one
of another rollout in its pool: the first to start of the one that began first. It is ready when it
holds what that one serves; and, as Serve may drain another one first, what is left in the pool that
no other new one has, as far as its memory goes.

Plain functions of who is there: a control loop that begins anew in the midst of it goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from modelless.controller.effects import LoadInstance
from modelless.policies.reasons import Reason

MOST_ROLLOUT_S = 600.0
"""So long an upgrade is waited for; one that does not get on must not hold up scaling for good."""


class Standing(NamedTuple):
    """What a process is, as it tells the control loop.

    Attributes:
        release: the code and the settings that it runs, as ``live/cluster/release`` names them.
        rollout: which deployment of its application it came with.
        began_s: when it began, seconds since the epoch.
        is_starting: it serves nobody yet.
    """

    release: str = ""
    rollout: str = ""
    began_s: float = 0.0
    is_starting: bool = False


class Candidate(NamedTuple):
    """One process, as far as succession goes.

    Attributes:
        member_id, pool: its name, and where it belongs.
        standing: see there.
        ready: variants that it serves, and the bytes they take.
        hopeless: variants that it serves not and will not soon: they could not be loaded.
        memory_bytes: its budget.
    """

    member_id: str
    pool: str
    standing: Standing
    ready: Mapping[str, int] = MappingProxyType({})
    hopeless: Collection[str] = ()
    memory_bytes: float = inf


def predecessors(members: Iterable[Candidate]) -> dict[str, Candidate]:
    """By each process that starts in another's place: whose."""
    everybody = sorted(members, key=lambda each: (each.standing.began_s, each.member_id))
    found: dict[str, Candidate] = {}
    taken: set[str] = set()
    for heir in everybody:
        if not heir.standing.is_starting:
            continue
        for old in everybody:
            if (
                old.pool == heir.pool
                and old.standing.rollout != heir.standing.rollout
                and not old.standing.is_starting
                and old.member_id not in taken
            ):
                found[heir.member_id] = old
                taken.add(old.member_id)
                break
    return found


def lacking(
    heir: Candidate, predecessor: Candidate, members: Iterable[Candidate]
) -> tuple[str, ...]:
    """What the heir is still to load before an old one may go, in a fixed order."""
    left: dict[str, int] = {}
    kept = set(predecessor.ready)
    for other in members:
        if other.pool != heir.pool or other.member_id == heir.member_id:
            continue
        if other.standing.rollout == heir.standing.rollout:
            kept |= other.ready.keys()
        else:
            left.update(other.ready)
    wanted, room_bytes = set(predecessor.ready), heir.memory_bytes - sum(predecessor.ready.values())
    for variant_id in sorted(left.keys() - kept):
        if left[variant_id] <= room_bytes:
            wanted.add(variant_id)
            room_bytes -= left[variant_id]
    return tuple(sorted(wanted - heir.ready.keys() - set(heir.hopeless)))


def bequests(members: Collection[Candidate]) -> list[LoadInstance]:
    """The loads that make heirs ready. What one has begun to load may be told it again."""
    heirs = predecessors(members)
    return [
        LoadInstance(member.member_id, variant_id, Reason.SUCCESSION)
        for member in members
        if member.member_id in heirs
        for variant_id in lacking(member, heirs[member.member_id], members)
    ]


@dataclass(slots=True)
class RolloutWatch:
    """Whether processes are being replaced just now: a bad time to unload or to scale anything.

    Attributes:
        since_s: since when members of several rollouts stand in one pool; infinite: they do not.
    """

    since_s: float = inf

    def is_under_way(self, members: Iterable[Candidate], now_s: float) -> bool:
        """Whether it is, for ``MOST_ROLLOUT_S`` at most."""
        rollouts = {(member.pool, member.standing.rollout) for member in members}
        if len(rollouts) == len({pool for pool, _ in rollouts}):
            self.since_s = inf
            return False
        self.since_s = min(self.since_s, now_s)
        return now_s - self.since_s < MOST_ROLLOUT_S
