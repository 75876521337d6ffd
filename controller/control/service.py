"""Which versions are in service, as the control loop publishes it and every process obeys it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from modelless.common.errors import NotFoundError
from modelless.controller.effects import LoadInstance, UnloadInstance
from modelless.policies.reasons import Reason
from modelless.policies.views import Instance, VariantFacts, WorkerState
from modelless.variants.registry.versions import Line, Trial, name_of


@dataclass(frozen=True, slots=True)
class Service:
    """The lines of all variants that are served.

    Attributes:
        token: differs from that of every other one that a control loop published.
        lines: by ``task/model/variant``; variants without one are served in any version.
    """

    token: str = ""
    lines: Mapping[str, Line] = field(default_factory=dict)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Those that are on."""
        return tuple(line.trial for line in self.lines.values() if line.trial is not None)

    @property
    def in_service(self) -> frozenset[str]:
        """The ids of all versions that are current or on trial."""
        return frozenset(each for line in self.lines.values() for each in line.in_service)

    @property
    def wanted(self) -> frozenset[str]:
        """The ids of those that somebody asked for: on trial, or promoted."""
        promoted = {line.current_id for line in self.lines.values() if line.earlier}
        return frozenset(promoted | {trial.variant_id for trial in self.trials})

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
        """What a worker serves of the variants that it holds ready, in their order.

        What was taken back is not among them from the moment that this is known: queries that wait
        for it are chosen for anew, and what already runs on it ends there.
        """
        served: set[str] = set()
        for name in {name_of(each) for each in held}:
            line = self.lines.get(name)
            mine = [each for each in held if name_of(each) == name]
            served.update(mine if line is None else line.serving(mine))
        return tuple(each for each in held if each in served)

    def current_of(self, facts: Mapping[str, VariantFacts]) -> tuple[VariantFacts, ...]:
        """What may be planned for: of each variant the current version.

        A version of which nothing is known cannot be placed; until it is profiled, the one before
        it stays.

        Args:
            facts: of all versions, by id, in the order of the answer.
        """
        wanted = set()
        for line in self.lines.values():
            ids = [f"{line.name}@{each}" for each in (line.current, *reversed(line.earlier))]
            wanted.add(next((each for each in ids if _is_placeable(facts.get(each))), ids[0]))
        return tuple(
            each for each in facts.values()
            if each.variant_id in wanted or name_of(each.variant_id) not in self.lines
        )  # fmt: skip

    def kept(self, worker: WorkerState) -> WorkerState:
        """The worker with what is on trial pinned: a trial must not end for want of room."""
        ids = {trial.variant_id for trial in self.trials}
        if not any(each.variant_id in ids for each in worker.instances):
            return worker
        pinned = (
            replace(each, pinned=True) if each.variant_id in ids else each
            for each in worker.instances
        )
        return replace(worker, instances=tuple(pinned))


def follow_up(
    service: Service,
    workers: Iterable[WorkerState],
    facts: Mapping[str, VariantFacts],
    busy: Collection[str],
) -> list[LoadInstance | UnloadInstance]:
    """What versions ask for beside the plan, whatever the policies are.

    A version on trial is loaded wherever its variant is, room allowing. One that was taken back, or
    was replaced twice, is unloaded; the predecessor stays for as long as its room is not needed, as
    that is what makes a rollback quick.

    Args:
        workers: with what they hold.
        facts: of all versions, by id.
        busy: workers that the plan has orders for now: their turn comes next time.
    """
    effects: list[LoadInstance | UnloadInstance] = []
    for worker in workers:
        if worker.worker_id in busy:
            continue
        held = {each.variant_id: each for each in worker.instances}
        names = {name_of(each) for each in held}
        free_bytes = worker.free_bytes
        for trial in service.trials:
            needed = _bytes_on(facts.get(trial.variant_id), worker.device_class)
            if trial.name in names and trial.variant_id not in held and needed <= free_bytes:
                free_bytes -= int(needed)
                effects.append(LoadInstance(worker.worker_id, trial.variant_id, Reason.ON_TRIAL))
        effects += [
            UnloadInstance(worker.worker_id, variant_id, Reason.WITHDRAWN)
            for variant_id in _outdated(service, held)
            if not held[variant_id].in_use
        ]
    return effects


def _outdated(service: Service, held: Mapping[str, Instance]) -> list[str]:
    kept: set[str] = set()
    for line in service.lines.values():
        kept.update(line.in_service, line.serving(held))
        kept.update(f"{line.name}@{each}" for each in line.earlier[-1:])
    return [each for each in held if name_of(each) in service.lines and each not in kept]


def _is_placeable(facts: VariantFacts | None) -> bool:
    return facts is not None and bool(facts.latency_s)


def _bytes_on(facts: VariantFacts | None, device_class: str) -> float:
    return float("inf") if facts is None else facts.memory_bytes.get(device_class, float("inf"))
