"""What is registered, as one frozen snapshot: what a name that a client wrote refers to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modelless.variants.errors import NotFoundError
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

    def resolve(self, name: str, version: str | None = None) -> Scope:
        """What ``task``, ``task/model`` or ``task/model/variant[@version]`` stands for.

        Args:
            name: as the client wrote it.
            version: from the URL or the command line, instead of ``@version``; needs a variant.

        Raises:
            NotFoundError: says which part is unknown, what there is, and what was probably meant.
        """
        task_name, model_name, variant_name, *rest = [*name.split("/"), None, None]
        task = self.tasks.get(task_name or "")
        if task is None:
            raise _unknown("task", task_name, self.tasks)
        mine = [variant for variant in self.variants if variant.task == task.name]
        if model_name is not None:
            models = {variant.model for variant in mine}
            if model_name not in models:
                raise _unknown(f"model of task {task.name!r}", model_name, models)
            mine = [variant for variant in mine if variant.model == model_name]
        if variant_name is not None:
            bare, _, written = variant_name.partition("@")
            names = {variant.name for variant in mine}
            if bare not in names or any(rest):
                extra = "/".join([variant_name, *(part for part in rest if part)])
                raise _unknown(f"variant of model {model_name!r}", extra, names)
            mine = [variant for variant in mine if variant.name == bare]
            version = written or version
        if version is not None:
            mine = [self._version(variant, version) for variant in mine]
        if not mine:
            raise NotFoundError(f"task {task.name!r} has no variants yet: register one first")
        return Scope(name, task, tuple(mine))

    def _version(self, newest: Variant, version: str) -> Variant:
        of_it = {
            str(variant.version): variant
            for variant in self.versions.values()
            if (variant.task, variant.model, variant.name)
            == (newest.task, newest.model, newest.name)
        }
        if version not in of_it:
            raise _unknown(f"version of variant {newest.name!r}", version, of_it)
        return of_it[version]


def _unknown(kind: str, name: str | None, known: Iterable[str]) -> NotFoundError:
    names = sorted(known)
    near = difflib.get_close_matches(name or "", names, n=1)
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return NotFoundError(
        f"unknown {kind}: {(name or '')[:80]!r}; there is: {shown or '(nothing)'}."
        + (f" Did you mean {near[0]!r}?" if near else "")
    )
