"""The queries of a recording: their arrivals, limits and outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from modelless.controller.replay.codec import decode
from modelless.controller.replay.tape import SUFFIX, TapeReader
from modelless.policies.views import QueryView


class Arrival(NamedTuple):
    """A recorded query, its arrival by the time of day, seconds."""

    at_s: float
    query: QueryView


@dataclass(slots=True)
class Outcomes:
    """Counts of outcomes as clients see them: a good answer is in time and accurate enough.

    Attributes:
        queries, good, answered: numbers of queries.
        value: sum of the good queries' accuracies, 0 to 1 each.
        accuracy: sum of the answered queries' accuracies, per cent.
    """

    queries: int = 0
    good: int = 0
    answered: int = 0
    value: float = 0.0
    accuracy: float = 0.0

    def figures(self, span_s: float) -> dict[str, Any]:
        """Return the figures under the simulator's names; ``span_s``: their time span, seconds."""
        return {
            "queries": self.queries,
            "attainment": self.good / self.queries if self.queries else None,
            "goodput_per_s": self.value / span_s if span_s > 0.0 else None,
            "mean_accuracy": self.accuracy / self.answered if self.answered else None,
        }


def gateways_in(folder: Path) -> list[Path]:
    """Return the tapes of the gateways."""
    return sorted(folder.glob(f"gateway-*{SUFFIX}"))


def arrivals_in(folder: Path) -> list[Arrival]:
    """Return all gateways' queries that the cache did not answer, in order of arrival."""
    found: list[Arrival] = []
    for path in gateways_in(folder):
        reader = TapeReader(path)
        offset_s = reader.header["clock"]["time_s"] - reader.header["clock"]["monotonic_s"]
        for _, event, _ in reader.items():
            if event[0] == "QueryArrived":
                query = decode(QueryView, event[1])
                found.append(Arrival(query.arrival_s + offset_s, query))
    return sorted(found, key=lambda arrival: arrival.at_s)


def outcomes_in(folder: Path) -> Outcomes:
    """Return the counts of the outcomes of a recording's queries."""
    total = Outcomes()
    for path in gateways_in(folder):
        reader = TapeReader(path)
        accuracy = {row[0]: row[1] for row in _accuracies(reader.header)}
        for query, variant_id, answered_s in _course(reader):
            total.queries += 1
            if variant_id is None:
                continue
            percent = accuracy[variant_id]
            total.answered += 1
            total.accuracy += percent
            if answered_s <= query.deadline_s and percent >= query.min_accuracy_percent:
                total.good += 1
                total.value += percent / 100.0
    return total


def _accuracies(header: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    from modelless.controller.replay.snapshot import read_snapshot

    for variant_id, variant in read_snapshot(header).variants.items():
        yield variant_id, variant.accuracy.percent


def _course(reader: TapeReader) -> Iterator[tuple[QueryView, str | None, float]]:
    """Yield each query, the variant that answered it or None, and the time of the answer.

    What the cache answered is left out, as in ``arrivals_in``: nothing was decided about it.
    """
    asked: dict[int, QueryView] = {}
    ran: dict[int, str] = {}
    for now_s, event, effects in reader.items():
        if event[0] == "QueryArrived":
            query = decode(QueryView, event[1])
            asked[query.query_id] = query
        for effect in effects:
            if effect[0] == "Execute":
                ran[effect[1]] = effect[3]
            elif effect[0] == "Complete" and effect[1] in asked:
                yield asked.pop(effect[1]), ran[effect[2]], float(now_s)
            elif effect[0] == "Refuse" and effect[1] in asked:
                yield asked.pop(effect[1]), None, math.nan
    for query in asked.values():  # cancelled, or the recording ended first
        yield query, None, math.nan
