"""What is registered, as one frozen snapshot: what a name that a client wrote refers to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modelless.variants.errors import NotFoundError
from modelless.variants.paths import not_found, parse_path
from modelless.variants.vocabulary import Model, Task, Variant


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a task that a name stands for.

    Attributes:
        name: canonical: ``task``, ``task/model``, ``task/model/variant`` or ``...@version``.
        task: the task.
        variants: those the name takes in, at least one; newest versions only, unless the name
            says which.
    """

    name: str
    task: Task
    variants: tuple[Variant, ...]


class Catalog:
    """Tasks, models and variants by name.

    Args:
        tasks, models: everything registered.
        variants: every version of every variant.
    """

    def __init__(
        self, tasks: Iterable[Task], models: Iterable[Model], variants: Iterable[Variant]
    ) -> None:
        self.tasks: Mapping[str, Task] = {task.name: task for task in tasks}
        self.models: Mapping[tuple[str, str], Model] = {(m.task, m.name): m for m in models}
        self.versions: Mapping[str, Variant] = {variant.id: variant for variant in variants}
        newest: dict[tuple[str, str, str], Variant] = {}
        for variant in self.versions.values():
            key = (variant.task, variant.model, variant.name)
            if key not in newest or newest[key].version < variant.version:
                newest[key] = variant
        self.variants: tuple[Variant, ...] = tuple(newest.values())

    def resolve(self, name: str, version: str | int | None = None) -> Scope:
        """What ``task``, ``task/model`` or ``task/model/variant[@version]`` stands for.

        Args:
            name: as the client wrote it.
            version: from the URL or the command line, instead of ``@version``; needs a variant.

        Raises:
            InvalidInputError: malformed, or a version of what has none.
            NotFoundError: says which part is unknown, what there is, and what was probably meant.
        """
        path = parse_path(name, version)
        task = self.tasks.get(path.task)
        if task is None:
            raise not_found("task", path.task, self.tasks, "'modelless zoo add imagenet' adds one.")
        mine = [variant for variant in self.variants if variant.task == task.name]
        if not mine:
            raise NotFoundError(f"Task {task.name!r} has no variants yet: register one.")
        if path.model is not None:
            models = {variant.model for variant in mine}
            if path.model not in models:
                raise not_found(f"model of task {task.name}", path.model, models, "")
            mine = [variant for variant in mine if variant.model == path.model]
        if path.variant is not None:
            names = {variant.name for variant in mine}
            if path.variant not in names:
                raise not_found(f"variant of model {path.model}", path.variant, names, "")
            mine = [variant for variant in mine if variant.name == path.variant]
        if path.version is not None:
            mine = [self._version(mine[0], path.version)]
        return Scope(str(path), task, tuple(mine))

    def _version(self, newest: Variant, version: int) -> Variant:
        found = self.versions.get(f"{newest.task}/{newest.model}/{newest.name}@{version}")
        if found is None:
            known = (str(number) for number in range(1, newest.version + 1))
            raise not_found(f"version of variant {newest.name}", str(version), known, "")
        return found
