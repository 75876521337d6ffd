"""State machines whose events and effects go onto a tape."""

from __future__ import annotations

from typing import Any, Protocol

from modelless.controller.replay.tape import Tape


class Machine(Protocol):
    """A state machine: ``handle`` is the only way to change its state."""

    def handle(self, event: Any, now_s: float) -> list[Any]:
        """Change the state by one event, and return the effects."""


class Recorded:
    """A state machine that also puts each event and its effects onto a tape.

    Everything but ``handle`` is passed through to the machine.

    Args:
        machine: the machine; only this object may send it events.
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
