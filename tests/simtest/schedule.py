"""What a run consists of: a world of drawn features, and a list of drawn things that happen.

Swarm testing (Groce et al., "Swarm Testing", ISSTA 2012): each seed switches a random subset of
faults and features on, so that rare ones are not drowned by frequent ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from modelless.controller.config import Settings, parse_settings
from tests.simtest import fleet

WORKERS = "cpu-1"
"""The name of the pool, which is that of its device class."""

LIMITS = (
    "accuracy", "cost", "deadline", "late", "tenants", "priority", "cancel", "items", "scope",
)  # fmt: skip
RESTLESS = "tests.simtest.restless:Restless"
SELECTIONS = (
    "cheapest-feasible", "most-accurate-feasible", "slack-fit", "clockwork", "round-robin",
    "planned-shares", "infaas", "model-switching", "random",
)  # fmt: skip
SCALINGS = (
    "on-demand", "workload-variant", "unserved-demand", "ongoing-requests", "infaas-autoscaler",
    "predictive", "proteus", "expected-value",
)  # fmt: skip
EVICTIONS = ("lfu", "gdsf", "miss-cost", "demand-driven", "lemonade", "modelmesh")
FAULTS = (
    "crash gateway", "crash worker", "crash control", "crash loading", "crash resizing",
    "crash starting", "crash leaving", "hang gateway", "hang worker", "hang control", "slow", "cut",
    "second control", "store away", "bad loads", "bad batches", "lossy", "repeats",
    "late messages", "upgrade", "canary", "promote", "roll back", "register",
)  # fmt: skip


class Item(NamedTuple):
    """Something that happens: when, what, to whom, for how long and how much.

    A process is named by its role and a number.
    """

    at_s: float
    kind: str
    target: str = ""
    length_s: float = 0.0
    value: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.at_s:6.2f} s  {self.kind}"]
        parts += [self.target] if self.target else []
        parts += [f"for {self.length_s:.2f} s"] if self.length_s else []
        parts += [f"({self.value:.3g})"] if self.value else []
        return " ".join(parts)


@dataclass(frozen=True)
class Setup:
    """The world of a run; the defaults are the plainest one. ``shrink`` goes back to them."""

    gateways: int = 1
    workers: int = 1  # at the start
    own_device: bool = False  # of gateways
    min_workers: int = 1
    max_workers: int = 1
    memory_mib: int = 1000  # of each device
    sizes: tuple[str, ...] = ()  # classes that devices may be resized to
    profiled: float = 1.0  # memory by the profiles over what loads really take
    learns: bool = False  # gateways learn from batches how long others will take
    selection: str = "best-value"
    explore: float = 0.0  # share of queries whose placement is drawn
    scaling: str = "fixed"
    eviction: str = "lru"
    pinned: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    hop_s: float = 0.002
    clocks_differ: bool = False
    limits: tuple[str, ...] = ()  # that queries may have
    end_s: float = 20.0  # of load and faults


class Schedule(NamedTuple):
    """A run: its seed, its world, and what happens in it."""

    seed: int
    setup: Setup
    items: tuple[Item, ...]

    def words(self) -> str:
        """Describe it for people: what differs from the plainest world, and what happens when."""
        plain = vars(Setup())
        features = [f"  {k} = {v!r}" for k, v in vars(self.setup).items() if v != plain[k]]
        return "\n".join([f"seed {self.seed}", *features, *(f"  {i}" for i in sorted(self.items))])


def settings_of(setup: Setup, offset_s: float = 0.0) -> Settings:
    """Return the settings of a cluster, for a process whose clock is off by so much."""
    has_device = setup.own_device or not setup.max_workers
    scaling: dict[str, Any] = {"policy": setup.scaling}
    if setup.scaling == RESTLESS:
        scaling["until_s"] = setup.end_s + offset_s
    elif setup.scaling == "proteus":
        scaling["node_limit"] = 20  # unlike a limit on time, it is the same in every run
    elif setup.scaling == "expected-value":
        scaling["pools"] = {"node_limit": 20}
    pool = {
        "device_class": WORKERS,
        "workers": setup.workers,
        "min_workers": setup.min_workers,
        "max_workers": setup.max_workers,
        "sizes": list(setup.sizes),
    }
    return parse_settings(
        {
            "gateways": {
                "count": setup.gateways,
                "device_class": WORKERS if has_device else None,
                "sizes": list(setup.sizes) if has_device else [],
            },
            "pools": [pool] if setup.max_workers else [],
            "policies": {
                "selection": setup.selection,
                "explore": setup.explore,
                "scaling": scaling,
                "eviction": setup.eviction,
            },
            "residency": {"pinned": list(setup.pinned), "preload": list(setup.preload)},
            "limits": {"max_batch": fleet.MAX_BATCH},
        }
    )


def draw(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    rng = random.Random(f"{seed}/schedule")
    setup = _draw_setup(rng)
    if random.Random(f"{seed}/explore").random() < 0.3:
        setup = replace(setup, explore=0.2)
    items = _draw_load(rng, setup)
    density = rng.choice((0.1, 0.3, 0.6))
    on = [kind for kind in FAULTS if rng.random() < density]
    for kind in on:
        items += [_draw_item(rng, kind, setup) for _ in range(rng.choice((1, 1, 2, 4)))]
    if setup.workers > 1 and rng.random() < 0.3:  # a quarantine for slowness takes some batches
        at_s = rng.uniform(3.0, max(setup.end_s - 5.0, 3.0))
        items.append(Item(at_s, "slow", "worker:0", 5.0, 4.5))
        items.append(Item(at_s - 2.0, "load", "both", 7.0, 25.0))
    if "canary" in on:  # a verdict takes some hundred queries
        tried = rng.choice(fleet.TRIED)
        items.append(Item(0.5, "canary", tried, value=2))
        load_s = max(setup.end_s - 3.0, 1.0)
        items.append(Item(3.0, "load", tried.partition("/")[0], load_s, 25.0))
    return Schedule(seed, setup, tuple(sorted(items)))


def _draw_setup(rng: random.Random) -> Setup:
    workers = rng.choice((0, 1, 2, 3))
    own_device = workers == 0 or rng.random() < 0.5
    scaling = rng.choice(("fixed", "fixed", "fixed", RESTLESS, RESTLESS, rng.choice(SCALINGS)))
    is_scaled = rng.random() < (0.3 if scaling == "fixed" else 0.8)
    setup = Setup(
        gateways=rng.choice((1, 2, 2, 3)),
        workers=workers,
        own_device=own_device,
        min_workers=0 if is_scaled and rng.random() < 0.5 else min(workers, 1),
        max_workers=workers + 2 if is_scaled else workers,
        memory_mib=rng.choice((600, 1000, 1000, 1500, 2500, 2500)),
        sizes=("cpu-2",) if rng.random() < (0.8 if scaling == RESTLESS else 0.2) else (),
        profiled=rng.choice((0.8, 1.0, 1.0, 1.0, 1.3)),
        learns=rng.random() < 0.5,
        selection=rng.choice(SELECTIONS) if rng.random() < 0.3 else "best-value",
        scaling=scaling,
        eviction=rng.choice(EVICTIONS) if rng.random() < 0.3 else "lru",
        pinned=("beta/one",) if rng.random() < 0.2 else (),
        preload=("alpha", "beta") if rng.random() < 0.3 else (),
        hop_s=rng.choice((0.0005, 0.002, 0.01)),
        clocks_differ=rng.random() < 0.7,
        limits=tuple(each for each in LIMITS if rng.random() < 0.4),
        end_s=rng.uniform(8.0, 25.0),
    )
    return replace(setup, min_workers=min(setup.min_workers, setup.max_workers))


def _draw_load(rng: random.Random, setup: Setup) -> list[Item]:
    items = []
    at_s = rng.uniform(0.0, 4.0)
    while at_s < setup.end_s:
        rate = rng.choice((2.0, 10.0, 25.0, 60.0))
        # Bursts are short, so that a run is cheap.
        length_s = min(rng.uniform(1.0, 10.0), 80.0 / rate, setup.end_s - at_s)
        target = rng.choice(("alpha", "beta", "both", "both"))
        items.append(Item(at_s, "load", target, length_s, rate))
        at_s += length_s + rng.choice((0.0, 0.0, 2.0))
    return items


def _draw_item(rng: random.Random, kind: str, setup: Setup) -> Item:
    at_s = rng.uniform(0.0, setup.end_s)
    length_s = rng.choice((0.1, 0.5, 2.0, 4.0, 8.0)) * rng.uniform(0.5, 1.5)
    length_s = min(length_s, setup.end_s - at_s)
    number = rng.randrange(3)
    verb, _, role = kind.partition(" ")
    target, value = "", 0.0
    if verb in ("crash", "hang"):
        kind, target = verb, f"{role}:{number}"
    elif kind == "slow":
        target = f"{rng.choice(('gateway', 'worker'))}:{number}"
        value = rng.choice((2.0, 5.0, 20.0))
    elif kind == "cut":
        ends = [rng.choice(("gateway", "worker", "control")) for _ in range(2)]
        target = f"{ends[0]}:{number}|{ends[1]}:{rng.randrange(3)}"
    elif kind in ("canary", "promote", "roll back"):
        value, length_s = rng.choice((2, 3)), 0.0
        target = rng.choice(fleet.TRIED)
    elif verb == "bad":
        target = rng.choice((*fleet.LADDER, *fleet.TASKS, *(f"{each}@2" for each in fleet.TRIED)))
        value = rng.choice((0.3, 1.0))
    elif kind in ("lossy", "repeats", "late messages"):
        value = rng.choice((0.02, 0.1, 0.3))
    elif kind in ("upgrade", "register"):
        length_s = 0.0
    return Item(at_s, kind, target, length_s, value)
