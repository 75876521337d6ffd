"""State machines whose events and effects go onto a tape."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from modelless.controller.control.messages import PlanEffect
from modelless.controller.control.planner import Planner
from modelless.controller.replay.tape import Tape
from modelless.policies.views import ClusterView, VariantFacts
from modelless.variants.vocabulary import DeviceClass


class Machine(Protocol):
    """A state machine: ``handle`` is the only way to change its state."""

    def handle(self, event: Any, now_s: float) -> list[Any]:
        """Change the state by one event, and return the effects."""


class Recorded:
    """A state machine that also puts each event and its effects onto a tape.

    Everything but ``handle`` is passed through to the machine.

    Args:
        machine: the machine; only this object may send it events.
        tape: the tape; the caller closes it.
    """

    def __init__(self, machine: Machine, tape: Tape) -> None:
        self._machine = machine
        self._tape = tape

    def handle(self, event: Any, now_s: float) -> list[Any]:
        """Change the machine's state by one event; record the event and return the effects."""
        effects = self._machine.handle(event, now_s)
        self._tape.put((now_s, event, effects))
        return effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)


# The planner, which has no ``handle`` yet.


class PlannerFacts(NamedTuple):
    """The device classes and loadable variants of all views that follow."""

    device_classes: Mapping[str, DeviceClass]
    variants: Sequence[VariantFacts]


class PlannerTick(NamedTuple):
    """A view for the planner, without what ``PlannerFacts`` holds."""

    view: ClusterView


class RecordedPlanner:
    """A planner that puts its views, effects and problems onto a tape, if it is given one.

    The device classes and the loadable variants are the same in most views: they are recorded once,
    and again when they change.
    """

    def __init__(self, planner: Planner, tape: Tape | None) -> None:
        self._planner = planner
        self._tape = tape
        self._facts: PlannerFacts | None = None

    @property
    def problems(self) -> list[str]:
        """See ``Planner``."""
        return self._planner.problems

    @property
    def declined(self) -> Sequence[str]:
        """See ``Planner``."""
        return self._planner.declined

    @property
    def scaled(self) -> Collection[str]:
        """See ``Planner``."""
        return self._planner.scaled

    def tick(self, view: ClusterView) -> list[PlanEffect]:
        """See ``Planner``."""
        effects = self._planner.tick(view)
        if self._tape is not None:
            facts = PlannerFacts(view.device_classes, view.variants)
            if facts != self._facts:
                self._facts = facts
                self._tape.put((view.now_s, facts, []))
            told = PlannerTick(replace(view, device_classes={}, variants=()))
            self._tape.put((view.now_s, told, [*effects, *self._planner.problems]))
        return effects

    def close(self) -> None:
        """Write the tape to its end; nothing is recorded after that."""
        if self._tape is not None:
            self._tape.close()
