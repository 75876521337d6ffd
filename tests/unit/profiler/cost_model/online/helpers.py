"""A small profile, and a stream of outcomes that it is told of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from modelless.profiler.cost_model.serving_model import ServingCostModel
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

IDLE = Load()
BATCHES = (1, 4)
Noise = Callable[[np.random.Generator], float]
Truth = Callable[[int, int, Load], float]
"""From the outcome's number, the placement's and the load to seen over profiled latency."""


def one_s(number: int) -> float:
    """Profiled median of placement ``number`` at a batch of one; in proportion to the batch."""
    return 0.01 * (number + 1)


def make_model(make: Any, count: int = 5, *, learns: bool = True) -> ServingCostModel:
    """Placements v0, v1, ... of one device class, all with p90 5 % and p99 10 % over p50."""
    return ServingCostModel(
        [
            make.measurement(
                variant_id=f"v{number}",
                batch=batch,
                p50_s=one_s(number) * batch,
                p90_s=one_s(number) * batch * 1.05,
                p99_s=one_s(number) * batch * 1.10,
            )
            for number in range(count)
            for batch in BATCHES
        ],
        learns=learns,
    )


def placement(number: int) -> Placement:
    """Placement ``number``."""
    return Placement(f"v{number}", "cpu-1")


def lognormal(deviation: float) -> Noise:
    """Noise with a median of 1."""
    return lambda rng: float(rng.lognormal(0.0, deviation))


class Outcome(NamedTuple):
    """What was predicted before it was learned, and what it took."""

    p50_s: float
    p90_s: float
    p99_s: float
    latency_s: float

    @property
    def error(self) -> float:
        """Of the median, relative."""
        return abs(self.p50_s / self.latency_s - 1.0)


def tell(
    model: ServingCostModel,
    outcomes: int,
    noise: Noise,
    truth: Truth = lambda _t, _number, _load: 1.0,
    loads: Iterable[float] = (0.0,),
    count: int = 5,
    seed: int = 1,
) -> list[Outcome]:
    """Predict and then tell ``outcomes`` outcomes of random placements, batches and loads."""
    rng = np.random.default_rng(seed)
    possible = list(loads)
    told = []
    for t in range(outcomes):
        number, batch = int(rng.integers(count)), int(rng.integers(1, 5))
        load = Load(possible[int(rng.integers(len(possible)))], at_s=0.05 * t)
        latency_s = one_s(number) * batch * truth(t, number, load) * noise(rng)
        estimates = model.estimate((placement(number),), batch, load)
        quantiles = (estimates.p50_s[0], estimates.p90_s[0], estimates.p99_s[0])
        told.append(Outcome(*map(float, quantiles), latency_s))
        model.observe(placement(number), batch, load, latency_s)
    return told


def covered_percent(told: list[Outcome]) -> list[float]:
    """Of the outcomes, how many were within p50, p90 and p99."""
    return [
        100.0 * float(np.mean([outcome.latency_s <= outcome[level] for outcome in told]))
        for level in range(3)
    ]
