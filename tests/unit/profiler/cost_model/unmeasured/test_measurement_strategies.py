"""Campaigns that follow an strategy: every point ends, and what cannot be chosen is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError
from modelless.profiler.measure.campaign import (
    CampaignSettings,
    PointsToMeasure,
    ProgressEvent,
    SkipReason,
    run_campaign,
)
from modelless.profiler.measure.measurement import Measurement
from modelless.variants.vocabulary import Placement


class Listed:
    """Chooses what it was told to, in that order."""

    def __init__(self, chosen: Iterable[PointsToMeasure]) -> None:
        self._chosen = iter(chosen)

    def choose(
        self, left: Mapping[Placement, Sequence[int]], known: Sequence[Measurement]
    ) -> PointsToMeasure | None:
        return next(self._chosen, None)


def place(number: int) -> Placement:
    return Placement(f"imagenet/lite0/v{number}@1", "cpu-1")


def test_every_point_of_a_placement_that_fails_ends(bench: Any, sink: Any, make: Any) -> None:
    bench.fail_load = place(0).variant_id
    events: list[ProgressEvent] = []
    strategy = Listed([PointsToMeasure(place(0), (2,)), PointsToMeasure(place(1), (1, 4))])
    result = run_campaign(
        make.jobs(2), sink, make.facts, None, events.append, bench.environment, strategy
    )
    assert set(result.failed) == {place(0)}
    assert [row.batch for row in result.measured] == [1, 4]
    assert result.skipped == dict.fromkeys([(place(1), 2), (place(1), 8)], SkipReason.PREDICTED)
    assert (events[-1].done, events[-1].total, events[-1].eta_s) == (8, 8, 0.0)


def test_every_point_of_a_placement_that_fails_midway_ends(
    bench: Any, sink: Any, make: Any
) -> None:
    bench.fail_at_batch = 4
    events: list[ProgressEvent] = []
    strategy = Listed([PointsToMeasure(place(0), (2, 4, 8)), PointsToMeasure(place(1), (1,))])
    run_campaign(make.jobs(2), sink, make.facts, None, events.append, bench.environment, strategy)
    assert [(row.variant_id, row.batch) for row in sink.rows] == [
        (place(0).variant_id, 2),
        (place(1).variant_id, 1),
    ]
    assert (events[-1].done, events[-1].total) == (8, 8)


def test_beyond_the_latency_cap_smaller_batches_stay_open(bench: Any, sink: Any, make: Any) -> None:
    bench.latency_s = lambda _variant, batch: 0.4 * batch
    strategy = Listed([PointsToMeasure(place(0), (4,)), PointsToMeasure(place(0), (1,))])
    result = run_campaign(
        make.jobs(1), sink, make.facts, environment=bench.environment, strategy=strategy
    )
    assert [row.batch for row in result.measured] == [4, 1]
    assert result.skipped == {
        (place(0), 8): SkipReason.LATENCY_CAP,
        (place(0), 2): SkipReason.PREDICTED,
    }


@pytest.mark.parametrize(
    "chosen",
    [
        PointsToMeasure(place(0), ()),
        PointsToMeasure(place(0), (4, 2)),
        PointsToMeasure(place(0), (2, 2)),
        PointsToMeasure(place(0), (3,)),
        PointsToMeasure(place(7), (1,)),
    ],
)
def test_what_is_not_left_cannot_be_chosen(
    bench: Any, sink: Any, make: Any, chosen: PointsToMeasure
) -> None:
    """An strategy that names no batch would otherwise be asked for ever."""
    settings = CampaignSettings(batches=(1, 2, 4))
    with pytest.raises(InvalidInputError, match=r"strategy\.choose"):
        run_campaign(
            make.jobs(1),
            sink,
            make.facts,
            settings,
            environment=bench.environment,
            strategy=Listed([chosen]),
        )
    assert bench.loaded == []


def test_a_point_is_measured_once(bench: Any, sink: Any, make: Any) -> None:
    again = Listed([PointsToMeasure(place(0), (1, 2)), PointsToMeasure(place(0), (2, 4))])
    with pytest.raises(InvalidInputError, match=r"strategy\.choose"):
        run_campaign(make.jobs(1), sink, make.facts, environment=bench.environment, strategy=again)
    assert [row.batch for row in sink.rows] == [1, 2]
