"""What a load sends: kinds of queries, rates, and the schedule that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KindSpec(_Spec):
    """A kind of queries.

    Attributes:
        limits: ``latency_ms``, ``min_accuracy``, ``max_cost_usd``; those that are set.
        weight: its share among the kinds, relative.
        deadline_ms: by which the client wants its answer.
        images: a NumPy file, one item a query along axis 0.
        labels: for each image the acceptable classes; empty where they are not known.
    """

    name: str
    task: str
    limits: dict[str, float] = Field(default_factory=dict)
    weight: float = Field(gt=0.0)
    deadline_ms: float = Field(gt=0.0)
    images: Path
    labels: list[list[int]]
    input_name: str
    output_name: str


class StepSpec(_Spec):
    """A stretch of constant mean rate: ``seconds`` long, ``per_s`` queries a second on average."""

    seconds: float = Field(gt=0.0)
    per_s: float = Field(ge=0.0)


class LoadSpec(_Spec):
    """A load to send.

    Attributes:
        url: ``http://host:port``.
        kinds, steps: what and how fast, in order.
        seed: of the times and of the order.
        most_connections: more queries than these at once wait in the client, and are timed all the
            same.
    """

    url: str
    kinds: list[KindSpec] = Field(min_length=1)
    steps: list[StepSpec] = Field(min_length=1)
    seed: int = 0
    most_connections: int = 256

    @property
    def length_s(self) -> float:
        """How long queries are sent, seconds."""
        return sum(step.seconds for step in self.steps)

    def offered_per_s(self, at_s: float) -> float:
        """The mean rate that is due ``at_s`` seconds after the beginning; 0 outside."""
        start_s = 0.0
        for step in self.steps:
            if start_s <= at_s < start_s + step.seconds:
                return step.per_s
            start_s += step.seconds
        return 0.0


class ScheduledQuery(NamedTuple):
    """A query to be sent: when (seconds from the beginning), of which kind, with which image."""

    due_s: float
    kind: int
    image: int


def schedule(spec: LoadSpec, image_counts: Sequence[int]) -> list[ScheduledQuery]:
    """When to send what: a Poisson process whose rate follows the steps; the same for a seed."""
    rng = np.random.default_rng(spec.seed)
    weights = np.array([kind.weight for kind in spec.kinds])
    shots: list[ScheduledQuery] = []
    start_s = 0.0
    for step in spec.steps:
        count = int(rng.poisson(step.per_s * step.seconds))
        due_s = np.sort(rng.uniform(start_s, start_s + step.seconds, count))
        kinds = rng.choice(len(weights), size=count, p=weights / weights.sum())
        draws = rng.integers(0, 1 << 30, size=count)
        shots += [
            ScheduledQuery(float(at_s), int(kind), int(draw) % image_counts[kind])
            for at_s, kind, draw in zip(due_s, kinds, draws, strict=True)
        ]
        start_s += step.seconds
    return shots
