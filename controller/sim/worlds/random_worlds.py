"""Random worlds: the distribution of everything, drawn from a seed.

``log 1..60`` is log-uniform, because the quantity spans decades; ``1..12`` is uniform; ``p`` is a
probability; T is how long the run lasts.

time        T is log 30..900 s, at least ten times a typical load and thirty times the planner's
            interval, so that scaling matters. A number of queries is given. What items take follows
            from that and from the load: between 1 ms and some seconds.
load        log 0.3..2: the rate in the busiest twentieth of T over the capacity
            (``bound.capacity``), both without the queries that nothing can answer in time.
devices     log 1..60 workers of 1..4 classes: CPU (speed log 0.5..2; no launch, so that a batch
            saves nothing), NPU (log 2..8; a launch of 2.4 items) or GPU (log 8..50; a launch of log
            0.9..3.3 items), as ``benchmarks/simulation/fit_worlds.py`` fitted to public tables.
neighbours  p 0.4: hosts of 2..8 workers, each of which slows the others by log 0.005..0.1.
hops        p 0.5: log 0.02..0.5 of the quickest item to every worker; p 0.3: one class stands log
            0.1..3 quickest items away, where with p 0.5 a stream's clients are, too.
pools       p 0.25: of then at most 30 workers; each class may double, in log 1..T/10 s.
tasks       log 1..100, each of 1..m variants, m in 1..12. A task's work scatters lognormally
            (sigma 0.5). A class serves a task with p 0.8, and a variant of it with p 0.85.
variants    Accuracies lie evenly within log 1..25 points below the task's best, which is 65..95
            less an exponential of mean 2. From the first to the last an item takes log 1.5..16
            times as long, with a scatter of 0.3..0.56 of its logarithm (fitted). p90 is log
            1.02..1.3 times p50, and p99 that ratio to the power of 1.5..3.
size        log 20..5000 MiB x item ^ exponent, with scatter: one of the five laws fitted.
loads       log 5 ms..60 s for a typical size, 0.3 of it whatever the size; none is above 60 s.
memory      A worker holds log 0.05..1 of what can run on it, and at least one variant of each task.
profiles    p 0.6: every placement really takes 1 - e..1 + e times its profile; e is 0..0.3.
clients     log 1..10 tenants of 1..3 kinds each, in up to 4 streams, each with tasks of like work.
limits      In multiples of what the quickest variant allowed takes on an idle device, which is
            enough for nine tasks in ten: p 0.35 log 1.3..2.5, p 0.35 log 2.5..8, p 0.25 log 8..100,
            p 0.05 log 0.3..0.8, which is impossible. Between 5 ms and 60 s.
wishes      p 0.35: a minimum accuracy, that of some variant; p 0.15: a highest cost, log 1.2..10
            times that of the quickest; p 0.1: late answers are wanted. p 0.5: priorities of 0..3.
arrivals    Each stream is Poisson, has gamma gaps (cv log 0.3..8), bursts (log 2..100 times the
            rate in log 0.02..0.5 of the time, T over log 5..100 each cycle), is diurnal (swing
            0.2..1, 0.5..4 days in T) or has a flash crowd (log 3..30 times for log 0.02..0.2 of T).
            Where traces are given, p 0.15: a piece of one, log 0.05..1 of it, stretched to T.
mixes       Zipf of 0..1.5 over a stream's tasks; p 0.4: 1..3 pairs swap every T over log 5..100.
faults      p 0.25: 1..3, for log 0.02..0.3 of T each: a worker dies and comes back, a worker slows
            log 1.5..5 times, loads fail, or a site is cut off.
start       p 0.8: warm. The dispatcher ticks ten times in the shortest limit, every 20..500 ms.

Worlds to develop on and worlds to judge by have random numbers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.controller.sim.bound.capacity import Demand, demand_of
from modelless.controller.sim.randomness import stream
from modelless.controller.sim.worlds.world import HOME_SITE, World, WorldFile, parse_world

RandomSet = Literal["develop", "judge"]
"""Worlds that policies are developed on, and worlds that they are judged by."""

QUERIES: Final = 10_000
"""Of a world: a run takes some seconds."""

Traces = Mapping[str, NDArray[np.float64]]
"""By file: when its arrivals come, seconds, ascending."""

_Document = dict[str, Any]

_DEVICE_LAWS: Final = {
    # speed; launch, in items; USD an hour at that speed
    "cpu": ((0.5, 2.0), (0.0, 0.0), (0.05, 0.3)),
    "npu": ((2.0, 8.0), (2.4, 2.4), (0.05, 0.1)),
    "gpu": ((8.0, 50.0), (0.9, 3.3), (0.5, 3.0)),
}
_SIZE_LAWS: Final = ((0.79, 0.89), (-0.07, 0.23), (1.2, 0.42), (0.88, 0.53), (0.8, 0.83))
"""Exponent and scatter."""

_TIGHTNESS: Final = ((0.35, 1.3, 2.5), (0.35, 2.5, 8.0), (0.25, 8.0, 100.0), (0.05, 0.3, 0.8))
"""Share of clients, and their limits over what the quickest variant allowed takes."""
_SHORTEST_LIMIT_MS, _LONGEST_LIMIT_MS = 5.0, 60_000.0
_LARGEST: Final = 8  # items of a batch: limits.max_batch
_FAR: Final = "far"
_LEAST_LOAD, _MOST_LOAD = 0.3, 2.0
_MOST_WORKERS: Final = 60
_LONGEST_LOAD_S: Final = 60.0
_BUSIEST: Final = 1.0 / 20.0
"""Of the run: its rate is what the load is about."""
_LEAST_RECORDED: Final = 100
"""Arrivals in a piece of a trace."""
_ATTEMPTS: Final = 20


class DrawnWorld(NamedTuple):
    """A random world.

    Attributes:
        features: what was drawn, by name, so that causes can be read off.
    """

    world: World
    features: Mapping[str, float]


class _Way(NamedTuple):
    """How a query of a task can be answered: alone, on an idle device that has room for it."""

    accuracy: float
    latency_ms: float
    cost_usd: float


class _Draw:
    """Draws of one part of a world. They do not depend on how many another part makes."""

    def __init__(self, seed: int, *names: str) -> None:
        self.rng = stream(seed, "random-worlds", *names)

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def log(self, low: float, high: float) -> float:
        return exp(self.uniform(log(low), log(high))) if high > low else low

    def count(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(self.rng.integers(low, high + 1))

    def log_count(self, low: int, high: int) -> int:
        """Both ends included."""
        return min(int(self.log(low, high + 1)), high)

    def happens(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def scatter(self, sigma: float) -> float:
        """A lognormal factor of median 1."""
        return exp(float(self.rng.normal(0.0, sigma)))


def draw_world(
    seed: int,
    number: int,
    which: RandomSet = "develop",
    *,
    queries: int = QUERIES,
    traces: Traces | None = None,
) -> DrawnWorld:
    """A random world; the same arguments give the same one.

    Args:
        number: of the world in the set, however many there are.
        traces: recorded arrivals, of which pieces are drawn.

    Raises:
        InvalidInputError: no world with so few queries.
    """

    def attempt(place: int) -> DrawnWorld:
        return _draw(seed, number, which, place, queries, traces or {})

    for place in range(_ATTEMPTS):
        with suppress(InvalidInputError):  # seldom: nobody's limits can be kept
            return attempt(place)
    return attempt(_ATTEMPTS)


def _draw(
    seed: int, number: int, which: str, attempt: int, queries: int, traces: Traces
) -> DrawnWorld:
    def part(name: str) -> _Draw:
        return _Draw(seed, which, str(number), str(attempt), name)

    time = part("time")
    load_s = time.log(0.005, 60.0)
    span_s = round(time.log(max(30.0, 10.0 * load_s), 900.0), 1)
    load = time.log(_LEAST_LOAD, _MOST_LOAD)
    devices = _devices(part("devices"), span_s)
    tasks = _tasks(part("tasks"), devices, load_s)
    share = _give_memory(part("memory"), devices, tasks)
    quickest_ms = min(point["p50_ms"] for each in _variants(tasks) for point in each["points"])
    network = _network(part("network"), devices, quickest_ms)
    error = _make_profiles_wrong(part("profiles"), tasks)
    streams, wishes = _streams(part, devices, network, tasks, queries / span_s, span_s, traces)
    document: _Document = {
        "name": f"{which}-{seed}-{number:03d}",
        "description": "Drawn at random from stated distributions.",
        "seed": part("seed").count(1, 2**31),
        "duration_s": span_s,
        "warm_start": part("start").happens(0.8),
        "devices": devices,
        "network": network,
        "tasks": tasks,
        "queries": streams,
        "faults": _faults(part("faults"), devices, span_s),
    }
    # So far the median item takes 1 ms at speed 1; now it takes what makes that load.
    wanted = load / _demand(document).load
    _stretch(document, wanted)
    limits_ms = [each["latency_ms"] for stream_ in streams for each in stream_["slos"]]
    document["limits"] = {"tick_ms": _round(min(max(min(limits_ms) / 10.0, 20.0), 500.0))}
    demand = _demand(document)
    if not 0.8 * _LEAST_LOAD <= demand.load <= 1.2 * _MOST_LOAD:  # limits that were cut change it
        raise InvalidInputError.of("load", demand.load, "about what was drawn")
    world = _file(document).world
    features = {
        "load": demand.load,
        "peak over mean": demand.busiest_per_s / demand.mean_per_s,
        "duration, s": span_s,
        "workers": sum(each["count"] for each in devices),
        "device classes": len(devices),
        "tasks": len(tasks),
        "variants a task": len(_variants(tasks)) / len(tasks),
        "memory share": share,
        "load time, s": load_s,
        "shortest limit, ms": min(limits_ms),
        "longest limit, ms": max(limits_ms),
        "load time over shortest limit": load_s * 1e3 / min(limits_ms),
        "quickest item, ms": quickest_ms * wanted,
        "profile error": error,
        "contention": max(each.get("contention", 0.0) for each in devices),
        "hop, ms": max(world.hop_s(each) for each in world.devices) * 1e3,
        "growing pools": sum("max_workers" in each for each in devices),
        "fault count": len(world.faults),
        "swaps": max(
            span_s / each.popularity.drift_every_s * each.popularity.drift_swaps
            if each.popularity.drift_every_s
            else 0.0
            for each in world.queries
        ),
        "cold start": float(not world.warm_start),
        **wishes,
    }
    return DrawnWorld(world, features)


def _file(document: _Document) -> WorldFile:
    return parse_world(document, Path(), document["name"])


def _demand(document: _Document) -> Demand:
    return demand_of(_file(document), document["duration_s"] * _BUSIEST, only_possible=True)


def _devices(draw: _Draw, span_s: float) -> list[_Document]:
    grows = draw.happens(0.25)
    workers = draw.log_count(1, _MOST_WORKERS // 2 if grows else _MOST_WORKERS)
    classes = min(draw.count(1, 4), workers)
    cuts = sorted(draw.rng.choice(workers - 1, classes - 1, replace=False) + 1)
    counts = [end - begin for begin, end in pairwise([0, *map(int, cuts), workers])]
    has_neighbours = draw.happens(0.4)
    devices = []
    for number, count in enumerate(counts):
        kind = list(_DEVICE_LAWS)[draw.count(0, 2)]
        _, _, prices = _DEVICE_LAWS[kind]
        device: _Document = {
            "name": f"{kind}-{number}", "kind": kind, "count": count,
            "price_usd_per_hour": _round(draw.log(*prices)),
        }  # fmt: skip
        if has_neighbours:
            device |= {"per_host": draw.count(2, 8), "contention": _round(draw.log(0.005, 0.1))}
        if grows and draw.happens(0.7):
            device |= {
                "min_workers": draw.count(1, count),
                "max_workers": draw.count(count + 1, 2 * count),
                "start_s": _round(draw.log(1.0, span_s / 10.0)),
            }
        devices.append(device)
    return devices


def _tasks(draw: _Draw, devices: Sequence[_Document], typical_load_s: float) -> list[_Document]:
    laws = [_DEVICE_LAWS[each["kind"]] for each in devices]
    speeds, launches = [draw.log(*law[0]) for law in laws], [draw.log(*law[1]) for law in laws]
    names = [each["name"] for each in devices]
    count, most = draw.log_count(1, 100), draw.count(1, 12)
    best, typical_mib = draw.uniform(65.0, 95.0), draw.log(20.0, 5000.0)
    exponent, size_scatter = _SIZE_LAWS[draw.count(0, len(_SIZE_LAWS) - 1)]
    item_scatter, p90_ratio = draw.uniform(0.3, 0.56), draw.log(1.02, 1.3)
    tail = {"p90_ratio": _round(p90_ratio), "p99_ratio": _round(p90_ratio ** draw.uniform(1.5, 3))}
    tasks = []
    for number in range(count):
        variants = draw.count(1, most)
        work, slowest = draw.scatter(0.5), draw.log(1.5, 16.0)
        top, span = best - float(draw.rng.exponential(2.0)), draw.log(1.0, 25.0)
        served = [place for place in range(len(names)) if draw.happens(0.8)]
        if number == 0:  # every class has something to do
            served = list(range(len(names)))
        served = served or [draw.count(0, len(names) - 1)]
        written = []
        for rank in range(variants):
            step = rank / max(variants - 1, 1)
            item_ms = work * slowest**step * draw.scatter(item_scatter)
            size = item_ms**exponent * draw.scatter(size_scatter)
            runs_on = [place for place in served if rank == 0 or draw.happens(0.85)] or served
            points = []
            for place in runs_on:
                here_ms = item_ms / speeds[place] * draw.scatter(0.2)
                points += [
                    {"device": names[place], "batch": batch,
                     "p50_ms": here_ms * (launches[place] + batch)}
                    for batch in (1, _LARGEST)
                ]  # fmt: skip
            written.append({
                "model": f"m{rank:02d}",
                "accuracy": _round(top - span * (1.0 - step if variants > 1 else 0.0), 4),
                "memory_mib": _round(typical_mib * size),
                "load_s": _round(min(typical_load_s * (0.3 + 0.7 * size), _LONGEST_LOAD_S)),
                "points": points,
            })  # fmt: skip
        tasks.append({
            "name": f"task-{number:02d}",
            "variants": {"kind": "written", "tail": tail, "variants": written},
        })  # fmt: skip
    return tasks


def _variants(tasks: Sequence[_Document]) -> list[_Document]:
    return [variant for task in tasks for variant in task["variants"]["variants"]]


def _runs_on(variant: _Document, device: _Document) -> bool:
    return any(point["device"] == device["name"] for point in variant["points"])


def _give_memory(draw: _Draw, devices: Sequence[_Document], tasks: Sequence[_Document]) -> float:
    """The share of what can run on a worker that it holds, on average over the classes."""
    share, held = draw.log(0.05, 1.0), list[float]()
    for device in devices:
        sizes = [
            [each["memory_mib"] for each in _variants([task]) if _runs_on(each, device)]
            for task in tasks
        ]
        least = max(min(mine) for mine in sizes if mine)
        device["memory_mib"] = _round(1.01 * max(share * sum(map(sum, sizes)), least))
        held.append(min(device["memory_mib"] / sum(map(sum, sizes)), 1.0))
    return sum(held) / len(held)


def _network(draw: _Draw, devices: Sequence[_Document], quickest_ms: float) -> _Document:
    network: _Document = {}
    if draw.happens(0.5):
        network["worker_hop_ms"] = quickest_ms * draw.log(0.02, 0.5)
    if draw.happens(0.3):
        devices[draw.count(0, len(devices) - 1)]["site"] = _FAR
        way_ms = quickest_ms * draw.log(0.1, 3.0)
        network["delays"] = [{"between": [HOME_SITE, _FAR], "one_way_ms": way_ms}]
    return network


def _make_profiles_wrong(draw: _Draw, tasks: Sequence[_Document]) -> float:
    error = draw.uniform(0.0, 0.3) if draw.happens(0.6) else 0.0
    if error:
        for variant in _variants(tasks):
            names = dict.fromkeys(point["device"] for point in variant["points"])
            variant["true_ratios"] = {
                name: _round(draw.uniform(1.0 - error, 1.0 + error)) for name in names
            }
    return error


def _streams(
    part: Callable[[str], _Draw],
    devices: Sequence[_Document],
    network: _Document,
    tasks: Sequence[_Document],
    rate_per_s: float,
    span_s: float,
    traces: Traces,
) -> tuple[list[_Document], dict[str, float]]:
    """The streams of queries, and what their clients are like."""
    draw = part("clients")
    ways = [_ways(task, devices, network) for task in tasks]
    order = sorted(range(len(tasks)), key=lambda n: min(way.latency_ms for way in ways[n]))
    tenants = draw.log_count(1, 10)
    count = draw.count(1, min(tenants, 4))
    groups = np.array_split(order, min(count, len(tasks)))
    priorities = 3 if draw.happens(0.5) else 0
    drifts = draw.happens(0.4)
    rates = rate_per_s * draw.rng.dirichlet(np.full(count, 2.0))
    streams, weights, kinds = [], [], []
    for number in range(count):
        group = [int(each) for each in groups[number % len(groups)]]
        mine = [ways[each] for each in group]
        stream_: _Document = {
            "tasks": [tasks[each]["name"] for each in group],
            **_arrivals(part(f"arrivals-{number}"), float(rates[number]), span_s, traces),
            "popularity": {"zipf": _round(draw.uniform(0.0, 1.5))},
        }
        if drifts and len(group) > 1:
            every_s = span_s / draw.log(5.0, 100.0)
            stream_["popularity"] |= {
                "drift_every_s": _round(every_s),
                "drift_swaps": draw.count(1, 3),
            }
        away_ms = 0.0
        if network.get("delays") and draw.happens(0.5):
            stream_["site"], away_ms = _FAR, network["delays"][0]["one_way_ms"]
        clients = []
        for tenant in range(number, tenants, count):
            for _ in range(draw.count(1, 3)):
                client, tightness = _client(draw, mine, away_ms, priorities)
                clients.append({"tenant": f"tenant-{tenant}", **client})
                weights.append(client["weight"])
                kinds.append((client, tightness))
        total = sum(each["weight"] for each in clients)
        weights[-len(clients) :] = [
            each["weight"] / total * rates[number] / rate_per_s for each in clients
        ]
        stream_["slos"] = clients
        streams.append(stream_)

    def share(holds: Callable[[_Document, float], bool]) -> float:
        return float(sum(w for w, kind in zip(weights, kinds, strict=True) if holds(*kind)))

    return streams, {
        "tenants": tenants,
        "streams": count,
        "tight limits": share(lambda _, tightness: 1.0 <= tightness < 2.5),
        "loose limits": share(lambda _, tightness: tightness >= 8.0),
        "impossible limits": share(lambda _, tightness: tightness < 1.0),
        "minimum accuracies": share(lambda client, _: "min_accuracy" in client),
        "highest costs": share(lambda client, _: "max_cost_usd" in client),
        "late answers wanted": share(lambda client, _: "when_late" in client),
        "priorities": len({client["priority"] for client, _ in kinds}),
    }


def _client(
    draw: _Draw, ways: Sequence[Sequence[_Way]], away_ms: float, most_urgent: int
) -> tuple[_Document, float]:
    """A client of tasks that can be answered so, and its limit over what it takes."""
    client: _Document = {
        "weight": _round(draw.log(0.2, 5.0)), "priority": draw.count(0, most_urgent)
    }  # fmt: skip
    least = 0.0
    if draw.happens(0.35):
        some = ways[draw.count(0, len(ways) - 1)]
        top = float(np.quantile([max(way.accuracy for way in task) for task in ways], 0.1))
        least = min(some[draw.count(0, len(some) - 1)].accuracy, top)
        client["min_accuracy"] = least
    quickest = [
        min((way for way in task if way.accuracy >= least), key=lambda way: way.latency_ms)
        for task in ways
        if any(way.accuracy >= least for way in task)
    ]
    needed_ms = float(np.quantile([way.latency_ms for way in quickest], 0.9)) + 2.0 * away_ms
    place = int(draw.rng.choice(len(_TIGHTNESS), p=[share for share, _, _ in _TIGHTNESS]))
    tightness = draw.log(*_TIGHTNESS[place][1:])
    client["latency_ms"] = needed_ms * tightness
    if draw.happens(0.15):
        dear_usd = float(np.quantile([way.cost_usd for way in quickest], 0.9))
        client["max_cost_usd"] = dear_usd * draw.log(1.2, 10.0)
    if draw.happens(0.1):
        client["when_late"] = "serve"
    return client, tightness


def _ways(task: _Document, devices: Sequence[_Document], network: _Document) -> list[_Way]:
    hop_ms = network.get("worker_hop_ms", 0.0)
    far_ms = network["delays"][0]["one_way_ms"] if "delays" in network else 0.0
    return [
        _Way(
            variant["accuracy"],
            point["p50_ms"] * variant.get("true_ratios", {}).get(device["name"], 1.0)
            + 2.0 * (hop_ms + (far_ms if device.get("site") == _FAR else 0.0)),
            point["p50_ms"] / 3.6e6 * device["price_usd_per_hour"],
        )
        for variant in _variants([task])
        for device in devices
        if variant["memory_mib"] <= device["memory_mib"]
        for point in variant["points"]
        if point["device"] == device["name"] and point["batch"] == 1
    ]


def _arrivals(draw: _Draw, rate_per_s: float, span_s: float, traces: Traces) -> _Document:
    if traces and draw.happens(0.15):
        return _piece(draw, rate_per_s, span_s, traces)
    kind = draw.count(0, 4)
    if kind == 0:
        arrivals: _Document = {"kind": "poisson", "rate_per_s": rate_per_s}
    elif kind == 1:
        arrivals = {"kind": "gamma", "rate_per_s": rate_per_s, "cv": _round(draw.log(0.3, 8.0))}
    elif kind == 2:
        ratio, high, cycle_s = draw.log(2.0, 100.0), draw.log(0.02, 0.5), span_s / draw.log(5, 100)
        low_per_s = rate_per_s / (1.0 + (ratio - 1.0) * high)
        arrivals = {
            "kind": "bursts", "low_per_s": low_per_s, "high_per_s": low_per_s * ratio,
            "mean_low_s": cycle_s * (1.0 - high), "mean_high_s": cycle_s * high,
        }  # fmt: skip
    elif kind == 3:
        period_s = span_s / draw.log(0.5, 4.0)
        arrivals = {
            "kind": "diurnal", "mean_per_s": rate_per_s, "swing": _round(draw.uniform(0.2, 1.0)),
            "period_s": period_s, "peak_at_s": draw.uniform(0.0, period_s),
        }  # fmt: skip
    else:
        ratio, hold_s = draw.log(3.0, 30.0), span_s * draw.log(0.02, 0.2)
        rise_s, fall_s = span_s * draw.log(0.002, 0.05), span_s * draw.log(0.01, 0.1)
        crowd = (rise_s / 2.0 + hold_s + fall_s) / span_s
        base_per_s = rate_per_s / (1.0 + (ratio - 1.0) * crowd)
        arrivals = {
            "kind": "flash-crowd", "base_per_s": base_per_s, "peak_per_s": base_per_s * ratio,
            "at_s": span_s * draw.uniform(0.1, 0.6), "rise_s": rise_s, "hold_s": hold_s,
            "fall_s": fall_s,
        }  # fmt: skip
    return {"arrivals": arrivals}


def _piece(draw: _Draw, rate_per_s: float, span_s: float, traces: Traces) -> _Document:
    """A piece of a trace, stretched; the whole trace where little comes in the piece."""
    path = sorted(traces)[draw.count(0, len(traces) - 1)]
    times_s = traces[path]
    whole_s, share = float(times_s[-1]), draw.log(0.05, 1.0)
    piece_s, from_s = whole_s * share, draw.uniform(0.0, whole_s * (1.0 - share))
    begin, end = np.searchsorted(times_s, [from_s, from_s + piece_s])
    if end - begin < _LEAST_RECORDED:
        piece_s, from_s, begin, end = whole_s, 0.0, 0, len(times_s)
    return {
        "arrivals": {"kind": "trace", "path": path, "from_s": from_s},
        "time_scale": piece_s / span_s,
        "rate_scale": rate_per_s * span_s / float(end - begin),
    }


def _faults(draw: _Draw, devices: Sequence[_Document], span_s: float) -> list[_Document]:
    faults: list[_Document] = []
    for _ in range(draw.count(1, 3) if draw.happens(0.25) else 0):
        device = devices[draw.count(0, len(devices) - 1)]
        worker = f"{device['name']}/{draw.count(0, device['count'] - 1)}"
        at_s = span_s * draw.uniform(0.1, 0.7)
        until_s = at_s + span_s * draw.log(0.02, 0.3)
        kind, factor = draw.count(0, 3), draw.log(1.5, 5.0)
        where = {"worker": worker, "at_s": at_s}
        if kind == 0:
            fault = {"kind": "worker-dies", **where, "back_s": until_s}
        elif kind == 1 or (kind == 3 and not any("site" in each for each in devices)):
            fault = {"kind": "worker-slows", **where, "until_s": until_s, "factor": factor}
        elif kind == 2:
            fault = {"kind": "load-fails", **where, "until_s": until_s}
        else:
            fault = {"kind": "site-cut", "site": _FAR, "at_s": at_s, "until_s": until_s}
        faults.append(fault)
    return faults


def _stretch(document: _Document, factor: float) -> None:
    """Let everything that an item's time is in take ``factor`` times as long."""
    for variant in _variants(document["tasks"]):
        for point in variant["points"]:
            point["p50_ms"] = _round(point["p50_ms"] * factor)
    network = document["network"]
    if "worker_hop_ms" in network:
        network["worker_hop_ms"] = _round(min(network["worker_hop_ms"] * factor, 1000.0))
    for delay in network.get("delays", ()):
        delay["one_way_ms"] = _round(delay["one_way_ms"] * factor)
    for client in (client for each in document["queries"] for client in each["slos"]):
        limit_ms = client["latency_ms"] * factor
        client["latency_ms"] = _round(min(max(limit_ms, _SHORTEST_LIMIT_MS), _LONGEST_LIMIT_MS))
        if "max_cost_usd" in client:
            client["max_cost_usd"] = _round(client["max_cost_usd"] * factor)


def _round(number: float, digits: int = 3) -> float:
    """To so many significant digits, for people that read the world."""
    return float(f"{number:.{digits}g}")
