"""A control loop that has just begun decides nothing that may be regretted."""

from __future__ import annotations

from modelless.controller.control.settling import without_rash
from modelless.controller.effects import Advise, LoadInstance, ScalePool, UnloadInstance
from modelless.policies.reasons import Reason

LOAD = LoadInstance("w0", "a", Reason.WANTED)


def test_loads_into_free_memory_and_advice_are_harmless() -> None:
    effects = [LOAD, Advise(())]
    assert without_rash(effects) == effects


def test_nothing_is_unloaded_and_what_needed_the_room_is_not_loaded() -> None:
    unload = UnloadInstance("w0", "b", Reason.ROOM_NEEDED, "a")
    elsewhere = LoadInstance("w1", "a", Reason.WANTED)
    assert without_rash([unload, LOAD, elsewhere]) == [elsewhere]


def test_no_pool_is_scaled() -> None:
    assert without_rash([ScalePool("cpu-1", 0, Reason.FIXED_SIZE)]) == []
