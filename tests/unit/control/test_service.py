"""Which versions a worker serves, and what is loaded and unloaded for their sake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modelless.common.errors import NotFoundError
from modelless.controller.control.canaries import version_effects
from modelless.controller.control.served_versions import Service
from modelless.controller.device.messages import LoadInstance, UnloadInstance
from modelless.policies.reasons import Reason
from modelless.policies.views import Instance, VariantFacts, WorkerState
from modelless.variants.registry.versions import Line, Trial

NAME = "imagenet/lite0/int8"
OTHER = "imagenet/lite2/fp32@1"
TRIAL = Trial(NAME, 3, 2, 0.05, 7, 0.0)


def ids(*versions: int) -> tuple[str, ...]:
    return tuple(f"{NAME}@{version}" for version in versions)


def service(current: int, *earlier: int, trial: Trial | None = None) -> Service:
    return Service("t", {NAME: Line(NAME, current, earlier, trial)})


def facts(*variant_ids: str, known: bool = True) -> dict[str, VariantFacts]:
    figures = {"cpu-1": 100.0} if known else {}
    return {
        each: VariantFacts(each, "imagenet", 70.0, figures, figures, figures)
        for each in variant_ids
    }


def worker(*variant_ids: str, memory_bytes: int = 1000, in_use: str = "") -> WorkerState:
    held = tuple(
        Instance("w", each, 100, 0.1, 0.0, 0, in_use=each == in_use) for each in variant_ids
    )
    return WorkerState("w", "cpu-1", memory_bytes, held)


@pytest.mark.parametrize(
    ("held", "serves"),
    [
        ((1,), (1,)),  # the new one is not loaded yet
        ((1, 2), (2,)),
        ((2,), (2,)),
        ((1, 3), (1,)),  # 3 was never promoted, or was taken back
        ((3,), ()),
    ],
)
def test_a_worker_serves_the_latest_of_the_line_that_it_holds(
    held: tuple[int, ...], serves: tuple[int, ...]
) -> None:
    assert service(2, 1).serving((*ids(*held), OTHER)) == (*ids(*serves), OTHER)


def test_what_is_on_trial_is_served_beside_it() -> None:
    on = service(2, 1, trial=TRIAL)
    assert on.serving(ids(1, 2, 3)) == ids(2, 3)
    assert on.serving(ids(1, 3)) == ids(1, 3)
    assert on.in_service == set(ids(2, 3))


def test_without_a_word_everything_is_served() -> None:
    assert Service().serving((*ids(1, 2), OTHER)) == (*ids(1, 2), OTHER)


def test_a_version_that_is_not_in_service_says_which_are() -> None:
    on = service(2, 1, trial=TRIAL)
    for each in (*ids(2, 3), OTHER):
        on.check(each)
    with pytest.raises(NotFoundError, match=r"in service: imagenet/lite0/int8@2, .*@3"):
        on.check(*ids(1))


def test_plans_are_made_for_current_versions() -> None:
    known = facts(*ids(1, 2, 3), OTHER)
    assert [each.variant_id for each in service(2, 1).current_of(known)] == [*ids(2), OTHER]


def test_what_cannot_be_placed_does_not_replace_what_can() -> None:
    known = {**facts(*ids(1)), **facts(*ids(2), known=False)}
    assert [each.variant_id for each in service(2, 1).current_of(known)] == [*ids(1)]


def test_what_is_on_trial_stays_while_it_is() -> None:
    kept = service(2, trial=TRIAL).pin_versions(worker(*ids(2, 3)))
    assert [each.pinned for each in kept.instances] == [False, True]


def test_an_earlier_version_in_a_pinned_scope_is_not_pinned() -> None:
    held = worker(*ids(1, 2), OTHER)
    pinned = replace(held, instances=tuple(replace(i, pinned=True) for i in held.instances))
    kept = service(2, 1).pin_versions(pinned)
    assert [(each.variant_id, each.pinned) for each in kept.instances] == [
        (*ids(1), False),
        (*ids(2), True),
        (OTHER, True),
    ]


def test_it_is_loaded_beside_the_current_one_room_allowing() -> None:
    on, known = service(2, 1, trial=TRIAL), facts(*ids(1, 2, 3))
    load = LoadInstance("w", f"{NAME}@3", Reason.ON_TRIAL, 100, "cpu-1")
    assert version_effects(on, [worker(*ids(2))], known, ()) == [load]
    assert version_effects(on, [worker(*ids(2), memory_bytes=150)], known, ()) == []
    assert version_effects(on, [worker(OTHER)], known, ()) == []  # its variant is not wanted there
    assert version_effects(on, [worker(*ids(2, 3))], known, ()) == []
    assert version_effects(on, [worker(*ids(2))], known, {"w"}) == []
    assert version_effects(on, [worker(*ids(2))], facts(*ids(3), known=False), ()) == []


def test_what_was_taken_back_leaves_and_the_predecessor_stays() -> None:
    on = service(4, 1, 2)
    unload = [UnloadInstance("w", each, Reason.WITHDRAWN) for each in ids(1, 3)]
    assert version_effects(on, [worker(*ids(1, 2, 3, 4), OTHER)], {}, ()) == unload
    in_use = worker(*ids(1, 2, 3, 4), in_use=ids(3)[0])
    assert version_effects(on, [in_use], {}, ()) == unload[:1]
    assert version_effects(on, [worker(*ids(1))], {}, ()) == []  # it has no other


def test_a_trial_that_ended_in_a_promotion_needs_no_load() -> None:
    over = service(3, 2)
    assert over.serving(ids(2, 3)) == ids(3)
    assert version_effects(over, [worker(*ids(2, 3))], facts(*ids(2, 3)), ()) == []


def retired(*leaving: str) -> Service:
    return Service("t", {NAME: Line(NAME, 2, (1,), TRIAL, retired=True)}, frozenset(leaving))


def test_what_is_retired_serves_what_came_before_and_then_nothing() -> None:
    assert retired(NAME).serving((*ids(1, 2), OTHER)) == (*ids(2), OTHER)
    assert retired().serving((*ids(1, 2), OTHER)) == (OTHER,)
    assert (retired(NAME).gone, retired().gone) == (frozenset(), {NAME})


def test_what_is_retired_is_neither_planned_for_nor_tried_nor_pinned() -> None:
    for on in (retired(NAME), retired()):
        known = on.current_of(facts(*ids(1, 2, 3), OTHER))
        assert [each.variant_id for each in known] == [OTHER]
        assert (on.in_service, on.trials) == (frozenset(), ())
        held = worker(*ids(2))
        pinned = replace(held, instances=tuple(replace(i, pinned=True) for i in held.instances))
        assert [each.pinned for each in on.pin_versions(pinned).instances] == [False]


def test_what_is_retired_is_unloaded_once_nothing_waits_for_it() -> None:
    held = worker(*ids(2), OTHER)
    assert version_effects(retired(NAME), [held], {}, ()) == []
    unload = UnloadInstance("w", *ids(2), Reason.WITHDRAWN)
    assert version_effects(retired(), [held], {}, ()) == [unload]
    assert version_effects(retired(), [worker(*ids(2), in_use=ids(2)[0])], {}, ()) == []
