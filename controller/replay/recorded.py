"""Cores whose inputs and effects are kept on a tape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from modelless.controller.control.messages import PlanEffect
from modelless.controller.control.planner import Planner
from modelless.controller.dispatch.dispatcher import Dispatcher
from modelless.controller.dispatch.instances import WorkerReport
from modelless.controller.effects import DispatchEffect
from modelless.controller.replay.codec import pairs
from modelless.controller.replay.tape import Tape
from modelless.policies.views import ClusterView, QueryView
from modelless.variants.estimates import Load
from modelless.variants.vocabulary import Placement

_Answer = TypeVar("_Answer")

QUESTIONS = frozenset(
    {
        "members",
        "in_use",
        "receipt",
        "take_counters",
        "open_by_scope",
        "open_queries",
        "patience",
        "queued",
    }
)
"""What a dispatcher is asked that changes no decision; all else public is an input."""


class RecordedDispatcher(Dispatcher):
    """A dispatcher that puts (input, arguments, effects) onto ``tape``, if it is given one."""

    tape: Tape | None = None
    _is_inside = False

    def on_query(self, query: QueryView, now_s: float) -> list[DispatchEffect]:
        """See ``Dispatcher``."""
        effects = super().on_query(query, now_s)
        self._put("on_query", (query, now_s), effects)
        return effects

    def on_batch_done(
        self,
        batch_id: int,
        now_s: float,
        busy_s: float,
        others_s: float = 0.0,
        waited_s: float = 0.0,
    ) -> list[DispatchEffect]:
        """See ``Dispatcher``."""
        inputs = (batch_id, now_s, busy_s, others_s, waited_s)
        done = super().on_batch_done
        return self._nested("on_batch_done", inputs, lambda: done(*inputs))

    def on_batch_returned(
        self, batch_id: int, now_s: float, others_s: float
    ) -> list[DispatchEffect]:
        """See ``Dispatcher``."""
        inputs = (batch_id, now_s, others_s)
        returned = super().on_batch_returned
        return self._nested("on_batch_returned", inputs, lambda: returned(*inputs))

    def on_batch_failed(
        self, batch_id: int, now_s: float, *, worker_lost: bool
    ) -> list[DispatchEffect]:
        """See ``Dispatcher``."""
        inputs = (batch_id, now_s, worker_lost)
        failed = super().on_batch_failed
        return self._nested(
            "on_batch_failed", inputs, lambda: failed(batch_id, now_s, worker_lost=worker_lost)
        )

    def on_worker_report(
        self, report: WorkerReport, now_s: float, lead_s: float = 0.0
    ) -> list[DispatchEffect]:
        """See ``Dispatcher``."""
        effects = super().on_worker_report(report, now_s, lead_s)
        self._put("on_worker_report", (report, now_s, lead_s), effects)
        return effects

    def on_worker_lost(self, worker_id: str, now_s: float) -> list[DispatchEffect]:
        """See ``Dispatcher``."""
        effects = super().on_worker_lost(worker_id, now_s)
        self._put("on_worker_lost", (worker_id, now_s), effects)
        return effects

    def on_cancel(self, query_id: int, now_s: float) -> None:
        """See ``Dispatcher``."""
        super().on_cancel(query_id, now_s)
        self._put("on_cancel", (query_id, now_s), None)

    def on_tick(self, now_s: float) -> list[DispatchEffect]:
        """See ``Dispatcher``."""
        tick = super().on_tick
        return self._nested("on_tick", (now_s,), lambda: tick(now_s))

    def refresh(self, load: Load, starting_s: Mapping[str, float] = MappingProxyType({})) -> None:
        """See ``Dispatcher``."""
        super().refresh(load, starting_s)
        self._put("refresh", (load, dict(starting_s)), None)

    def advise(self, shares: Mapping[str, Mapping[Placement, float]]) -> str | None:
        """See ``Dispatcher``."""
        problem = super().advise(shares)
        told = {scope: pairs(placements) for scope, placements in shares.items()}
        self._put("advise", (told,), problem)
        return problem

    def shut_down(self, now_s: float) -> list[DispatchEffect]:
        """See ``Dispatcher``."""
        effects = super().shut_down(now_s)
        self._put("shut_down", (now_s,), effects)
        return effects

    def _nested(self, name: str, inputs: tuple[Any, ...], call: Callable[[], _Answer]) -> _Answer:
        """An input that may lead to others, which are then none of the driver's."""
        self._is_inside = True
        try:
            effects = call()
        finally:
            self._is_inside = False
        self._put(name, inputs, effects)
        return effects

    def _put(self, name: str, inputs: tuple[Any, ...], answer: object) -> None:
        if self.tape is not None and not self._is_inside:
            self.tape.put((name, inputs, answer))


class RecordedPlanner:
    """A planner that puts its views, effects and problems onto a tape, if it is given one.

    What may be loaded and the device classes are the same in most views: they are put once, and
    again when they are others.
    """

    def __init__(self, planner: Planner, tape: Tape | None) -> None:
        self._planner = planner
        self._tape = tape
        self._constant: tuple[object, object] | None = None

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
            constant = (view.device_classes, view.variants)
            if constant != self._constant:
                self._constant = constant
                self._tape.put(("facts", constant, None))
            told = replace(view, device_classes={}, variants=())
            self._tape.put(("tick", (told,), [*effects, *self._planner.problems]))
        return effects

    def close(self) -> None:
        """Write the tape to its end; what comes later is on none."""
        if self._tape is not None:
            self._tape.close()
