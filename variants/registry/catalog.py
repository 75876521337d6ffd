"""A frozen snapshot of the registry, which resolves the names that clients write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from modelless.common.errors import NotFoundError
from modelless.variants.paths import ScopePath, not_found, parse_path
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import Model, Task, Variant

_RETIRED: Final = (
    "it was retired or removed, or is dominated: see 'modelless variants --all-versions'"
)
_NO_VERSION: Final = 0
"""As the current version: versions are numbered from 1."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a task that a name stands for.

    Attributes:
        name: canonical: ``task``, ``task/model``, ``task/model/variant`` or ``...@version``.
        task: the task.
        variants: those the name takes in, at least one; current versions only, unless the name
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
        left_out: why a variant is not among them, by its id, for those who ask for it by name.
        current: the current version by ``task/model/variant``; of others it is the first.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        models: Iterable[Model],
        variants: Iterable[Variant],
        left_out: Mapping[str, str] = MappingProxyType({}),
        current: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.left_out = dict(left_out)
        self.current = dict(current)
        self.tasks: Mapping[str, Task] = {task.name: task for task in tasks}
        self.models: Mapping[tuple[str, str], Model] = {(m.task, m.name): m for m in models}
        self.versions: Mapping[str, Variant] = {variant.id: variant for variant in variants}
        serving: dict[str, Variant] = {}
        for variant in self.versions.values():
            name = name_of(variant.id)
            known = serving.get(name, variant)
            if self.current.get(name, variant.version) == variant.version <= known.version:
                serving[name] = variant
        self.variants: tuple[Variant, ...] = tuple(serving.values())

    def without(self, reasons: Mapping[str, str]) -> Catalog:
        """The same without some of ``variants``, whose older versions go too.

        Args:
            reasons: why, by variant id; what nothing is left of says so when it is asked for.
        """
        gone = {name_of(variant.id) for variant in self.variants if variant.id in reasons}
        return Catalog(
            self.tasks.values(),
            self.models.values(),
            (each for each in self.versions.values() if name_of(each.id) not in gone),
            {**self.left_out, **reasons},
            self.current,
        )

    def with_current(
        self, current: Mapping[str, int], retired: Collection[str] = frozenset()
    ) -> Catalog:
        """The same with these as the current versions, of those that it knows; others stay.

        Args:
            current: by ``task/model/variant``.
            retired: names of variants of which none is current. Tasks that have no others go;
                versions stay known.
        """
        before = {name_of(variant.id): variant.version for variant in self.variants}
        known = {name: v for name, v in current.items() if f"{name}@{v}" in self.versions}
        left_out = {v.id: _RETIRED for v in self.variants if name_of(v.id) in retired}
        gone = {self.versions[each].task for each in left_out}
        gone -= {v.task for v in self.variants if v.id not in left_out}
        return Catalog(
            (task for task in self.tasks.values() if task.name not in gone),
            self.models.values(),
            self.versions.values(),
            {**self.left_out, **left_out},
            {**before, **known, **dict.fromkeys(retired, _NO_VERSION)},
        )

    def grown_by(self, newer: Catalog, names: Collection[str]) -> Catalog:
        """The same, and what a newer one has of these ``task/model/variant``."""
        added = [each for each in newer.versions.values() if name_of(each.id) in names]
        tasks = {each.task: newer.tasks[each.task] for each in added}
        models = {key: newer.models[key] for key in ((each.task, each.model) for each in added)}
        current = {name_of(each.id): each.version for each in (*newer.variants, *self.variants)}
        return Catalog(
            {**self.tasks, **tasks}.values(),
            {**self.models, **models}.values(),
            [*self.versions.values(), *added],
            self.left_out,
            current,
        )

    def resolve(self, name: str, version: str | int | None = None) -> Scope:
        """The variants that ``task``, ``task/model`` or ``task/model/variant[@version]`` names.

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
            self._refuse_left_out(path)
            raise not_found("task", path.task, self.tasks, "'modelless zoo add imagenet' adds one.")
        mine = [variant for variant in self.variants if variant.task == task.name]
        if not mine:
            self._refuse_left_out(path)
            raise NotFoundError(f"Task {task.name!r} has no variants yet: register one.")
        if path.model is not None:
            models = {variant.model for variant in mine}
            if path.model not in models:
                self._refuse_left_out(path)
                raise not_found(f"model of task {task.name}", path.model, models, "")
            mine = [variant for variant in mine if variant.model == path.model]
        if path.variant is not None:
            names = {variant.name for variant in mine}
            if path.variant not in names:
                self._refuse_left_out(path)
                raise not_found(f"variant of model {path.model}", path.variant, names, "")
            mine = [variant for variant in mine if variant.name == path.variant]
        if path.version is not None:
            mine = [self._version(mine[0], path.version)]
        return Scope(str(path), task, tuple(mine))

    def _refuse_left_out(self, path: ScopePath) -> None:
        wanted = "/".join(part for part in (path.task, path.model, path.variant) if part)
        for variant_id, reason in self.left_out.items():
            if f"{name_of(variant_id)}/".startswith(f"{wanted}/"):
                raise NotFoundError(f"{variant_id} is not served: {reason}")

    def _version(self, serving: Variant, version: int) -> Variant:
        name = name_of(serving.id)
        found = self.versions.get(f"{name}@{version}")
        if found is None:
            known = (str(v.version) for v in self.versions.values() if name_of(v.id) == name)
            raise not_found(f"version of variant {serving.name}", str(version), known, "")
        return found
