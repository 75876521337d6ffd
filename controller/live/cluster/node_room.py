"""Whether the nodes of a Ray cluster have room for what is to be started there.

Ray does not refuse what no node can take: it waits for one that can, as long as it takes. Where no
other node can come that is refused here, and elsewhere nobody waits for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modelless.controller.config import PoolSettings, Settings

REPLICA_CPUS = 0.01
"""What a process of ours asks of Ray's books unless it is told otherwise: cores are shared."""

_CONDITION = re.compile(r"(!?)in\((.*)\)")
_ROUNDING = 1e-6


class Node(NamedTuple):
    """What a node has in all, whoever uses it now.

    Attributes:
        resources: by Ray's names: ``CPU``, ``GPU``, or the cluster's own.
    """

    resources: dict[str, float]
    labels: Mapping[str, str]


def nodes_of(described: Iterable[Mapping[str, Any]]) -> list[Node]:
    """The nodes that live, of what ``ray.nodes()`` says."""
    return [
        Node(node.get("Resources", {}), node.get("Labels", {}))
        for node in described
        if node.get("Alive", False)
    ]


def cpus_for(settings: Settings, gateways: int) -> int:
    """CPUs that a Ray of one node must have in its books, whatever the machine has."""
    workers = sum(max(pool.workers, pool.max_workers, 1) for pool in settings.pools)
    # Besides: each pool's head, and one more of each kind while they are replaced.
    processes = gateways + 1 + workers + 2 * len(settings.pools)
    asked_for = sum(pool.resources.get("CPU", 0.0) * pool.workers for pool in settings.pools)
    return max(math.ceil(REPLICA_CPUS * processes + asked_for), 1)


class _Want(NamedTuple):
    """Processes that are to be started: which section asks for how many, and what each needs."""

    section: str
    who: str
    number: int
    resources: Mapping[str, float]
    labels: Mapping[str, str]

    def __str__(self) -> str:
        parts = []
        for key, asked in (("resources", self.resources), ("labels", self.labels)):
            if asked:
                told = ", ".join(f"{name}: {_shown(value)}" for name, value in asked.items())
                parts.append(f"{self.section}.{key} {{{told}}}")
        return f"the {self.who} need {' and '.join(parts)} each"


def without_room(settings: Settings, gateways: int, nodes: Sequence[Node]) -> dict[str, str]:
    """What does not fit on the nodes, by section: what it needs and what there is room for.

    The pools take what they need one after the other, each wherever there is room.

    Returns:
        Texts for people by ``gateways`` or ``pools[i]``.
    """
    wants = [
        _Want(
            f"pools[{number}]",
            f"workers of {pool.device_class}",
            max(pool.workers, 1),  # Serve begins with one
            pool.resources,
            pool.labels,
        )
        for number, pool in enumerate(settings.pools)
    ]
    wants.append(_Want("gateways", "gateways", gateways, {}, settings.gateways.labels))
    left = [Node(dict(node.resources), node.labels) for node in nodes]
    found = {}
    for want in wants:
        there = 0
        for node in left:
            there += _take(node, want, want.number - there)
        if there < want.number:
            found[want.section] = f"{want}: there is room for {there} of {want.number}"
    return found


def has_resources(pool: PoolSettings, available: Mapping[str, float]) -> bool:
    """Whether one worker more finds what the pool's workers ask of Ray, such as a GPU."""
    return all(available.get(name, 0.0) >= amount for name, amount in pool.resources.items())


def available_bytes(root: Path = Path("/")) -> float:
    """Memory that a new process may take on this machine; infinite where nobody says."""
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return float("inf")
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024.0 if found else float("inf")


def _take(node: Node, want: _Want, most: int) -> int:
    """Take the room of up to ``most`` of these on the node; of how many."""
    number = int(min(_room_on(node, want), most))
    for name, amount in want.resources.items():
        node.resources[name] = node.resources.get(name, 0.0) - number * amount
    return number


def _room_on(node: Node, want: _Want) -> float:
    """How many of these the node takes; inf if they ask for nothing that runs out."""
    if not all(_meets(node.labels.get(name), wanted) for name, wanted in want.labels.items()):
        return 0.0
    rooms = [
        math.floor(node.resources.get(name, 0.0) / amount + _ROUNDING)
        for name, amount in want.resources.items()
        if amount > 0.0
    ]
    return min(rooms, default=math.inf)


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _meets(value: str | None, wanted: str) -> bool:
    """Whether a node's label, if it has it, is as Ray's selector wants it."""
    condition = _CONDITION.fullmatch(wanted)
    if condition is not None:
        among = value in [each.strip() for each in condition[2].split(",")]
        return among != bool(condition[1])
    if wanted.startswith("!"):
        return value != wanted[1:]
    return value == wanted
