"""The queries of a world: streams of arrivals merged, each with its task and its limits."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from math import inf
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError
from modelless.controller.sim.randomness import stream
from modelless.controller.sim.worlds.arrivals import Recorded, SloSettings
from modelless.controller.sim.worlds.queries import (
    PopularitySettings,
    QueriesSettings,
    SizesSettings,
)
from modelless.controller.sim.worlds.world import WorldFile
from modelless.policies.views import QueryView
from modelless.variants.signature import padded_size

_BLOCK = 1024


class Client(NamedTuple):
    """One kind of client of one stream.

    Attributes:
        limits: of its queries, as ``QueryView`` has them from the minimum accuracy on.
    """

    slo: SloSettings
    latency_s: float
    site: str
    delay_s: float
    limits: tuple[object, ...]


class Asked(NamedTuple):
    """A query as it leaves its client; ``size``: numbers in an item, 0 for a profiled one."""

    arrival_s: float
    task: str
    client: Client
    size: int = 0


def queries(file: WorldFile, seed: int) -> Iterator[Asked]:
    """All queries of the world, ascending in time; ends at ``duration_s``.

    Raises:
        InvalidInputError: while iterating: see ``arrivals.Arrivals.arrivals``; names the stream.
    """
    streams = [_stream(file, number, seed) for number in range(len(file.world.queries))]
    if len(streams) == 1:
        return streams[0]
    return heapq.merge(*streams, key=itemgetter(0))


def arrivals_by_scope(asked: Iterable[Asked]) -> dict[str, NDArray[np.float64]]:
    """When queries come in at the gateway: by scope, ascending, seconds, float64."""
    at_s: dict[str, list[float]] = {}
    for each in asked:
        at_s.setdefault(each.task, []).append(each.arrival_s + each.client.delay_s)
    return {scope: np.sort(np.array(times, dtype=np.float64)) for scope, times in at_s.items()}


def _stream(file: WorldFile, number: int, seed: int) -> Iterator[Asked]:
    world, settings = file.world, file.world.queries[number]
    place = f"queries.{number}"
    site = settings.site or world.network.gateway
    delay_s = world.delay_s(site)

    def client_of(slo: SloSettings) -> Client:
        latency_ms = slo.latency_ms or world.limits.default_latency_ms
        return Client(slo, latency_ms / 1e3, site, delay_s, _limits(slo))

    clients = [client_of(slo) for slo in settings.slos]
    picks = _picks([slo.weight for slo in settings.slos], stream(seed, place, "slo"))
    tasks = _tasks_of(settings, world.task_names)
    popularity = Popularity(settings.popularity, len(tasks), seed, place)
    sizes = _sizes(settings.sizes, stream(seed, place, "sizes")) if settings.sizes else None
    start_s, time_scale = settings.start_s, settings.time_scale
    end_s = inf if world.duration_s is None else world.duration_s
    known = set(tasks)
    try:
        source = settings.arrivals.arrivals(
            file.folder,
            settings.rate_scale * world.load,
            stream(seed, place, "arrivals"),
            (end_s - start_s) * time_scale,
        )
        is_mixed = len(tasks) > 1
        for at_s, named in source:
            now_s = start_s + at_s / time_scale
            client = None
            if named is not None and isinstance(named, Recorded):
                named, slo = named
                _check_items(slo, at_s, world.limits.max_batch)
                client = client_of(slo)
            if named is None:
                task = tasks[popularity.pick(now_s)] if is_mixed else tasks[0]
            elif isinstance(named, int):
                task = tasks[named % len(tasks)]
            elif named.partition("/")[0] in known:
                task = named
            else:
                raise InvalidInputError.of(
                    f"task at arrival_s {at_s:g}", named, ", ".join(tasks[:8])
                )
            if now_s >= end_s:
                return
            # A named tuple's own constructor is a Python function: this takes half as long.
            found = client or clients[next(picks)]
            yield tuple.__new__(Asked, (now_s, task, found, next(sizes) if sizes else 0))
    except InvalidInputError as error:
        raise InvalidInputError(f"{place}.arrivals: {error}") from None


def _limits(slo: SloSettings) -> tuple[object, ...]:
    view = QueryView(
        query_id=0,
        scope="",
        arrival_s=0.0,
        deadline_s=0.0,
        min_accuracy_percent=slo.min_accuracy,
        max_cost_usd=inf if slo.max_cost_usd is None else slo.max_cost_usd,
        priority=slo.priority,
        items=slo.items,
        tenant=slo.tenant,
        serve_late=slo.when_late == "serve",
        has_default_deadline=slo.latency_ms is None,
    )
    return view[QueryView._fields.index("min_accuracy_percent") :]


def _check_items(slo: SloSettings, at_s: float, max_batch: int) -> None:
    if slo.items > max_batch:
        allowed = f"1 to {max_batch} (limits.max_batch)"
        raise InvalidInputError.of(f"items at arrival_s {at_s:g}", slo.items, allowed)


def _tasks_of(settings: QueriesSettings, names: Sequence[str]) -> list[str]:
    """The tasks that the patterns take in, each once, in the patterns' order."""
    found = [name for pattern in settings.tasks for name in names if fnmatchcase(name, pattern)]
    return list(dict.fromkeys(found))


def _picks(weights: Sequence[float], rng: np.random.Generator) -> Iterator[int]:
    """Numbers drawn by weight, for ever."""
    cumulated = np.cumsum(weights) / np.sum(weights)
    last = len(weights) - 1
    while True:
        if last == 0:
            yield 0
            continue
        drawn = np.searchsorted(cumulated, rng.random(_BLOCK), side="right")
        yield from np.minimum(drawn, last).tolist()


def _sizes(settings: SizesSettings, rng: np.random.Generator) -> Iterator[int]:
    """Sizes of items, for ever."""
    while True:
        logs = rng.uniform(np.log(settings.least), np.log(settings.most), _BLOCK)
        multiples = np.rint(np.exp(logs) / settings.step).astype(np.int64).clip(min=1)
        for multiple in multiples.tolist():
            yield (padded_size(multiple) if settings.padded else multiple) * settings.step


class Popularity:
    """Which of several tasks an arrival asks for: Zipf by rank; ranks swap as time passes."""

    def __init__(self, settings: PopularitySettings, count: int, seed: int, place: str) -> None:
        self._settings = settings
        self._ranked = list(range(count))
        weights = 1.0 / np.arange(1, count + 1) ** settings.zipf
        self._picks = _picks(weights.tolist(), stream(seed, place, "popularity"))
        self._drift = stream(seed, place, "drift")
        self._next_s = settings.drift_every_s or float("inf")

    def pick(self, now_s: float) -> int:
        """The number of the task, at a time that never goes back."""
        while now_s >= self._next_s:
            self._next_s += self._settings.drift_every_s or float("inf")
            for _ in range(self._settings.drift_swaps):
                one, other = self._drift.integers(0, len(self._ranked), 2).tolist()
                ranked = self._ranked
                ranked[one], ranked[other] = ranked[other], ranked[one]
        return self._ranked[next(self._picks)]
