"""The versions in service, which the control loop publishes and every process follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modelless.common.errors import NotFoundError
from modelless.policies.views import Instance, VariantFacts, WorkerState
from modelless.variants.registry.versions import Line, Trial, name_of

LEAVE_S = 10.0
"""How long a retired variant goes on serving what came before."""


@dataclass(frozen=True, slots=True)
class Service:
    """The lines of all variants that are served.

    Attributes:
        token: differs from that of every other one that a control loop published.
        lines: by ``task/model/variant``; variants without one are served in any version.
        leaving: names of lines that were retired lately. What came before may still be waiting for
            them, so workers go on serving them.
        accuracies_percent: by id, what variants count for that feedback has demoted.
        revision, changes: the latest revision of the settings; see ``live/settings_revisions``.
    """

    token: str = ""
    lines: Mapping[str, Line] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    accuracies_percent: Mapping[str, float] = field(default_factory=dict)
    revision: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trials(self) -> tuple[Trial, ...]:
        lines = self.lines.values()
        return tuple(line.trial for line in lines if line.trial is not None and not line.retired)

    @property
    def retired(self) -> frozenset[str]:
        """The names of variants that no new query gets."""
        return frozenset(name for name, line in self.lines.items() if line.retired)

    @property
    def gone(self) -> frozenset[str]:
        """The names of retired variants that serve nothing any more."""
        return self.retired - self.leaving

    @property
    def in_service(self) -> frozenset[str]:
        """The ids of all versions that are current or on trial."""
        return frozenset(each for line in self.lines.values() for each in line.in_service)

    def check(self, variant_id: str) -> None:
        """Whether that version is in service; NotFoundError says which are."""
        line = self.lines.get(name_of(variant_id))
        if line is not None and variant_id not in line.in_service:
            raise NotFoundError(
                f"{variant_id} is registered but not in service; in service: "
                f"{', '.join(line.in_service)}. To serve it: modelless promote {variant_id}, or on "
                f"a share of the queries: modelless canary {variant_id} --share 5%"
            )

    def serving(self, held: Sequence[str]) -> tuple[str, ...]:
        """Return the variants that a worker serves, of those that it holds ready, in their order.

        A version that was rolled back is not among them from the moment that this is known: another
        choice is made for the queries that wait for it, and a batch that runs on it ends there.
        """
        held_of: dict[str, list[str]] = {}
        for each in held:
            held_of.setdefault(name_of(each), []).append(each)
        served: set[str] = set()
        for name, mine in held_of.items():
            if name not in self.gone:
                line = self.lines.get(name)
                served.update(mine if line is None else line.serving(mine))
        return tuple(each for each in held if each in served)

    def current_of(self, facts: Mapping[str, VariantFacts]) -> tuple[VariantFacts, ...]:
        """Return the facts of the versions to plan for: of each variant the current one.

        A version without a profile cannot be placed: until it has one, the version before it stays.

        Args:
            facts: of all versions, by id, in the order of the answer.
        """
        wanted = set()
        for line in self.lines.values():
            if line.retired:
                continue
            ids = [f"{line.name}@{each}" for each in (line.current, *reversed(line.earlier))]
            wanted.add(next((each for each in ids if _is_placeable(facts.get(each))), ids[0]))
        return tuple(
            each for each in facts.values()
            if each.variant_id in wanted or name_of(each.variant_id) not in self.lines
        )  # fmt: skip

    def pin_versions(self, worker: WorkerState) -> WorkerState:
        """Return the worker with its versions on trial pinned, and with its earlier ones not.

        So no trial ends for want of room; and where an operator pinned the scope, an earlier
        version does not keep the room that the current one needs.
        """
        if not self.lines:
            return worker
        instances = tuple(
            each if pinned == each.pinned else replace(each, pinned=pinned)
            for each in worker.instances
            for pinned in [self._is_pinned(each)]
        )
        return worker if instances == worker.instances else replace(worker, instances=instances)

    def _is_pinned(self, instance: Instance) -> bool:
        line = self.lines.get(name_of(instance.variant_id))
        if line is None or line.retired:
            return instance.pinned and line is None
        is_tried = line.trial is not None and instance.variant_id == line.trial.variant_id
        return is_tried or (instance.pinned and instance.variant_id == line.current_id)


class Retirements:
    """Which retired lines are still leaving. What was retired from the start is not."""

    def __init__(self) -> None:
        self._lines: Mapping[str, Line] = {}
        self._since_s: dict[str, float] = {}

    def update(self, lines: Mapping[str, Line], now_s: float) -> frozenset[str]:
        """Take the lines of this moment; return the names of those that are leaving."""
        self._since_s = {
            name: since_s
            for name, line in lines.items()
            if line.retired and name in self._lines
            for since_s in [self._since_s.get(name) if self._lines[name].retired else now_s]
            if since_s is not None and now_s - since_s < LEAVE_S
        }
        self._lines = lines
        return frozenset(self._since_s)

    def is_over(self, now_s: float) -> bool:
        """Whether a line has left since the last update."""
        return any(now_s - since_s >= LEAVE_S for since_s in self._since_s.values())


def _is_placeable(facts: VariantFacts | None) -> bool:
    return facts is not None and bool(facts.latency_s)
