"""What of the registered can be served: what has a profile on a device class of the cluster.

A task that nothing can serve must not keep all others from being ready: it is left out, and says
why wherever somebody looks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from modelless.common.errors import ModellessError
from modelless.variants.estimates import CostModel, Load
from modelless.variants.registry.catalog import Catalog, Scope
from modelless.variants.vocabulary import Placement


class NotServableError(ModellessError):
    """It is registered, but nothing here can serve it before somebody does something about it."""

    http_status = 503
    exit_code = 8


class Servable:
    """Which variants can be served, and why not what cannot.

    Args:
        cost_model: knows the profiles, and what is supposed where settings allow that.
        device_classes: names of those that the cluster's workers are of, or may become.

    Attributes:
        variant_ids: what can be served, in whatever version.
        not_served: why, by task: those of which no current version of any variant can be served.
    """

    def __init__(
        self, catalog: Catalog, cost_model: CostModel, device_classes: Iterable[str]
    ) -> None:
        self._device_classes = sorted(device_classes)
        placements = [
            Placement(variant.id, name)
            for variant in catalog.versions.values()
            for name in self._device_classes
        ]
        p50_s = cost_model.estimate(placements, 1, Load()).p50_s.tolist()
        self.variant_ids = frozenset(
            placement.variant_id
            for placement, seconds in zip(placements, p50_s, strict=True)
            if seconds < math.inf
        )
        ids_by_task: dict[str, list[str]] = {name: [] for name in catalog.tasks}
        for variant in catalog.variants:
            ids_by_task[variant.task].append(variant.id)
        self.not_served: Mapping[str, str] = {
            name: self._problem_of(f"task {name}", name) if ids else _without_variants(name)
            for name, ids in ids_by_task.items()
            if self.variant_ids.isdisjoint(ids)
        }

    def problem(self, scope: Scope) -> str:
        """Why nothing can serve the scope, and what to do about it; empty if something can."""
        if any(variant.id in self.variant_ids for variant in scope.variants):
            return ""
        name = scope.name.partition("@")[0]
        return self.not_served.get(name) or self._problem_of(name, name)

    def check(self, scope: Scope) -> None:
        """Raise NotServableError if nothing can serve the scope."""
        problem = self.problem(scope)
        if problem:
            raise NotServableError(problem)

    def _problem_of(self, what: str, name: str) -> str:
        several = len(self._device_classes) > 1
        return (
            f"{what} has no profile on {'any of the device classes' if several else 'device class'}"
            f" {', '.join(self._device_classes)}: run 'modelless profile {name} --device-class "
            f"{','.join(self._device_classes)}'; a running modelless serves it seconds later"
        )


def _without_variants(task: str) -> str:
    return (
        f"task {task} has no variants: 'modelless register' adds one, and 'modelless profile' lets "
        "it serve"
    )
