"""Clockwork's replicas: more of what devices are asked for beyond their time, nothing otherwise."""

from __future__ import annotations

import pytest

from modelless.common.errors import InvalidInputError
from modelless.policies.scaling.unserved_demand import UnservedDemand, left_over
from modelless.policies.views import Demand, Instance, Targets
from modelless.variants.vocabulary import Placement

from .test_on_demand import MIDDLE, SMALL, loaded, view

A, B = Placement("t/a/v@1", "gpu"), Placement("t/b/v@1", "gpu")


def targets_of(rate_per_s: float, *held: Instance) -> Targets:
    seen = view(Demand("t", 0.5, 0.0, rate_per_s), held=held)
    return UnservedDemand(preload=False).targets(seen, {})


def test_what_is_missing_is_loaded_once() -> None:
    assert targets_of(1.0).instances == {Placement(SMALL, "gpu"): 1}


def test_a_worker_with_time_for_all_it_is_asked_gets_no_help() -> None:
    assert targets_of(7.0, loaded(SMALL)).instances == {}  # 0.7 of a device


def test_work_beyond_a_worker_s_time_brings_a_replica() -> None:
    targets = targets_of(9.0, loaded(SMALL))  # 0.9 of a device, of which 0.8 may be filled
    assert targets.instances == {Placement(SMALL, "gpu"): 2}
    assert targets.on_demand


def test_what_a_kind_of_query_asks_for_is_loaded_though_another_could_serve_it() -> None:
    assert targets_of(1.0, loaded(MIDDLE)).instances == {Placement(SMALL, "gpu"): 1}


def test_work_goes_to_the_device_that_has_time() -> None:
    left = left_over({A: 0.6, B: 0.6}, {A: ["one"], B: ["one", "two"]}, 1.0)
    assert left[A] == pytest.approx(0.0, abs=0.01)
    assert left[B] == pytest.approx(0.0, abs=0.01)


def test_a_device_asked_for_too_much_serves_each_in_proportion() -> None:
    left = left_over({A: 3.0, B: 1.0}, {A: ["one"], B: ["one"]}, 1.0)
    assert left == pytest.approx({A: 2.25, B: 0.75})


def test_what_nobody_holds_is_all_left_over() -> None:
    assert left_over({A: 0.5}, {A: []}, 1.0) == {A: 0.5}


@pytest.mark.parametrize("share", [0.0, 1.5, "all"])
def test_a_utilisation_out_of_bounds_is_refused(share: float) -> None:
    with pytest.raises(InvalidInputError, match="utilisation"):
        UnservedDemand(utilisation=share)
