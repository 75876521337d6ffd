"""What dominates what, and what noise does not decide."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from modelless.variants.registry.dominance import (
    Standing,
    dominates,
    find_dominated,
    intervals_part,
)
from modelless.variants.vocabulary import Accuracy, Provenance

MIB = 1 << 20


def standing(
    name: str,
    percent: float,
    p50_ms: dict[int, float],
    memory_mib: float = 1.0,
    half_width: float | None = 0.5,
    tail: float = 1.2,
    metric: str = "top-1",
) -> Standing:
    """A standing whose p90 and p99 are as far above the median as each other."""
    ends = (None, None) if half_width is None else (percent - half_width, percent + half_width)
    return Standing(
        name,
        Accuracy(percent, metric, Provenance.MEASURED, "a set", *ends, 1000),
        {batch: (ms / 1e3, ms * tail / 1e3, ms * tail / 1e3) for batch, ms in p50_ms.items()},
        dict.fromkeys(p50_ms, int(memory_mib * MIB)),
    )


OTHER = standing("other", 70.0, {1: 2.0, 2: 4.0})


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (standing("one", 72.0, {1: 1.0, 2: 2.0}), True),
        (standing("one", 72.0, {1: 1.0, 2: 2.0, 4: 99.0}), True),  # the other has no batch of 4
        (standing("one", 72.0, {1: 1.0, 2: 2.0}, memory_mib=0.5), True),
        (standing("one", 72.0, {1: 1.0, 2: 2.0}, memory_mib=1.1), False),
        (standing("one", 72.0, {1: 1.0, 2: 3.9}), False),  # at one batch within the noise
        (standing("one", 72.0, {1: 1.0}), False),  # nobody knows of a batch of 2
        (standing("one", 72.0, {1: 1.9, 2: 2.0}, tail=2.0), False),  # a tail that is longer
        (standing("one", 70.9, {1: 1.0, 2: 2.0}), False),  # the intervals overlap
        (standing("one", 70.0, {1: 1.0, 2: 2.0}), False),
        (standing("one", 69.0, {1: 1.0, 2: 2.0}), False),
        (standing("one", 72.0, {1: 1.0, 2: 2.0}, metric="macro-f1"), False),
    ],
)
def test_dominating_needs_a_lead_beyond_noise_in_both(one: Standing, expected: bool) -> None:
    assert dominates(one, OTHER) is expected


def test_nothing_measured_is_neither_beaten_nor_beats() -> None:
    nothing = standing("nothing", 99.0, {})
    assert not dominates(nothing, OTHER)
    assert not dominates(standing("one", 99.9, {1: 1.0}), nothing)


def test_memory_is_the_most_over_the_batches_of_the_beaten() -> None:
    one, other = standing("one", 80.0, {1: 1.0, 2: 1.0}), standing("other", 70.0, {1: 2.0, 2: 4.0})
    grows = Standing("one", one.accuracy, one.latency_s, {1: 2 * MIB, 2: 3 * MIB})
    small = Standing("other", other.accuracy, other.latency_s, {1: 1 * MIB, 2: 4 * MIB})
    assert dominates(grows, small)
    assert not dominates(grows, Standing("other", other.accuracy, other.latency_s, {1: 1, 2: 2}))


def test_an_accuracy_without_an_interval_counts_as_certain() -> None:
    sure = standing("sure", 70.6, {1: 1.0}, half_width=None)
    assert intervals_part(sure, standing("other", 70.0, {1: 1.0}))
    assert not intervals_part(sure, standing("other", 70.2, {1: 1.0}))


def test_the_best_that_nothing_beats_is_named() -> None:
    world = [
        standing("slow", 60.0, {1: 4.0}),
        standing("middle", 65.0, {1: 3.0}),
        standing("best", 70.0, {1: 2.0}),
        standing("quick", 50.0, {1: 1.0}),
    ]
    assert find_dominated(world) == {"middle": "best", "slow": "best"}


def test_a_finer_test_can_take_the_place_of_intervals() -> None:
    one, other = standing("one", 70.4, {1: 1.0}), standing("other", 70.0, {1: 2.0})
    assert find_dominated([one, other]) == {}
    assert find_dominated([one, other], lambda a, b: True) == {"other": "one"}


def test_never_all_are_dominated() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        world = [
            standing(str(i), *rng.uniform(50, 90, 1), {1: float(rng.uniform(1, 9))})
            for i in range(6)
        ]
        found = find_dominated(world, lambda a, b: True)
        assert len(found) < len(world)
        assert not found or set(found.values()) - set(found)  # a victor stands
        assert set(find_dominated(world)) <= set(found)


def test_figures_of_two_validation_sets_are_not_compared() -> None:
    fast, slow = standing("fast", 80.0, {1: 1.0}), standing("slow", 70.0, {1: 2.0})
    renamed = "a copy (sha256 0123456789ab)"
    for sources, expected in (
        (("set (sha256 0123456789ab)", renamed), True),
        (("set (sha256 0123456789ab)", "set (sha256 fedcba987654)"), False),
        (("test split", "validation split"), False),
    ):
        one, other = (
            dataclasses.replace(each, accuracy=dataclasses.replace(each.accuracy, source=source))
            for each, source in zip((fast, slow), sources, strict=True)
        )
        assert dominates(one, other) is expected
    published = dataclasses.replace(slow.accuracy, provenance=Provenance.PUBLISHED, source="a page")
    assert dominates(fast, dataclasses.replace(slow, accuracy=published))
