"""Limits derived from a profile make the same sense on any machine."""

from __future__ import annotations

from itertools import pairwise

import pytest

from modelless.controller.demo.profiles import frontier, short_name
from modelless.controller.demo.slos import (
    NamedSlo,
    best_within,
    cost_slos,
    deadline_ladder,
    floor_of,
    photo_slos,
    round_up,
    spread,
)
from modelless.variants.vocabulary import SLO
from tests.unit.demo.conftest import (
    DEVICE,
    a_family,
    clothes_family,
    make_profiled,
)

PRICE_USD_PER_S = DEVICE.cost_usd(1.0)


def test_frontier_rises_in_latency_and_accuracy() -> None:
    kept = frontier(a_family())
    assert len(kept) >= 6
    for quicker, slower in pairwise(kept):
        assert quicker.points[0].p99_s < slower.points[0].p99_s
        assert quicker.variant.accuracy.percent < slower.variant.accuracy.percent


def test_frontier_leaves_out_what_another_equals() -> None:
    one, same = make_profiled("fp32-128", 70.0, 5.0), make_profiled("int8-128", 70.0, 5.0)
    assert frontier([one, same]) == [one]
    assert frontier([]) == []


@pytest.mark.parametrize("speed", [0.1, 1.0, 5.0])
def test_limits_choose_many_variants_on_any_machine(speed: float) -> None:
    family = a_family(speed)
    slos = photo_slos(family, DEVICE)
    chosen = {
        slo.name: best_within(family, slo.slo, PRICE_USD_PER_S) for slo in slos if slo.is_feasible
    }
    assert None not in chosen.values()
    assert len({member.variant.id for member in chosen.values() if member}) >= 6
    assert len(slos) >= 8
    assert len({slo.name for slo in slos}) == len(slos)
    best = max(family, key=lambda member: member.variant.accuracy.percent)
    assert chosen["no limits"] is chosen["loose"] is chosen["accurate"] is best


@pytest.mark.parametrize("speed", [0.1, 1.0, 10.0])
def test_what_is_called_impossible_is(speed: float) -> None:
    family = a_family(speed)
    impossible = [slo for slo in photo_slos(family, DEVICE) if not slo.is_feasible]
    assert [slo.name for slo in impossible] == [
        "impossibly accurate",
        "impossibly quick",
        "impossible together",
    ]
    for slo in impossible:
        assert best_within(family, slo.slo, PRICE_USD_PER_S) is None


def test_each_deadline_leaves_room_for_another_variant() -> None:
    family = a_family()
    ladder = deadline_ladder(family)
    assert ladder == sorted(ladder)
    chosen = [best_within(family, SLO(latency_ms=ms), PRICE_USD_PER_S) for ms in ladder]
    assert len({member.variant.id for member in chosen if member}) == len(ladder)


def test_a_single_variant_is_enough() -> None:
    lonely = [make_profiled("fp32-224", 75.0, 9.0)]
    slos = photo_slos(lonely, DEVICE)
    assert all(
        best_within(lonely, slo.slo, PRICE_USD_PER_S) is lonely[0]
        for slo in slos
        if slo.is_feasible
    )
    assert "impossible together" not in {slo.name for slo in slos}
    assert [slo.name for slo in cost_slos(lonely, DEVICE, 8)] == ["no limits", "not dear"]


def test_cost_limits_tell_quick_variants_apart() -> None:
    family = clothes_family()
    slos = cost_slos(family, DEVICE, 8)
    assert slos[0].slo == SLO()
    caps = [slo.slo.max_cost_usd or 0.0 for slo in slos[1:]]
    assert caps == sorted(caps, reverse=True)
    assert len(set(caps)) == 3
    for member, cap in zip(family[:3], caps[::-1], strict=True):
        cost_usd = DEVICE.cost_usd(member.points[-1].p50_s)
        assert cost_usd < cap < 2.0 * cost_usd


def test_rounding_never_tightens_a_limit() -> None:
    assert round_up(12.01) == 13.0
    assert round_up(12.0) == 12.0
    assert round_up(0.00123) == 0.0013
    assert round_up(0.0) == 0.0
    assert floor_of(77.69) == 77.6
    assert floor_of(77.6) == 77.6
    assert floor_of(77.6 - 0.7) == 76.8  # one bit short of 76.9


def test_spread_keeps_both_ends() -> None:
    assert spread([1, 2, 3, 4, 5, 6, 7], 3) == [1, 4, 7]
    assert spread([1, 2], 3) == [1, 2]


def test_limits_are_shown_as_they_are_sent() -> None:
    assert NamedSlo("x", SLO()).limits == "none"
    said = NamedSlo("x", SLO(latency_ms=12, min_accuracy=75.0)).limits
    assert said == "latency_ms 12, min_accuracy 75"


def test_names_are_short() -> None:
    assert short_name("imagenet/efficientnet-lite0/int8-224@1") == "lite0 int8-224"
    assert short_name("fashion-mnist/cnn-xl/fp32-28@2") == "xl fp32-28"
