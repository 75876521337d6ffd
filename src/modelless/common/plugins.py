"""Plug-ins: objects that are found by a built-in name, an entry point or ``module:attribute``.

A package offers an object to all its users by an entry point in its metadata. Each kind of object
has a group of its own, such as ``modelless.policies``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from modelless.common.errors import FOREIGN_ERRORS, InvalidInputError, NotFoundError, did_you_mean


class Plugins:
    """The objects of one kind; iterating gives their names, built-in ones first.

    A built-in name cannot be taken by an entry point.
    """

    def __init__(
        self, kind: str, built_in: Mapping[str, Any], *, group: str = "", takes_paths: bool = False
    ) -> None:
        """Declare a kind of object.

        Args:
            built_in: by name, the object, or text ``module:attribute`` that is imported when asked
                for.
            group: of the entry points; empty if packages offer none.
            takes_paths: a name may also be ``module:attribute`` of any importable code.
        """
        self.kind = kind
        self.built_in = built_in
        self.group = group
        self.takes_paths = takes_paths

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from sorted(self._offered().keys() - self.built_in.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self._offered()

    def check(self, name: str) -> None:
        """Raise NotFoundError, which lists the names there are, if ``find`` does not know ``name``.

        Nothing is imported.
        """
        if name in self or (self.takes_paths and ":" in name):
            return
        names = list(self)
        own = "; or name your own as 'module:Class'" if self.takes_paths else ""
        raise NotFoundError(
            f"{self.kind} {name!r} does not exist; there are: {', '.join(names)}{own}. "
            f"{did_you_mean(name, names)}".rstrip()
        )

    def find(self, name: str) -> Any:
        """The object called ``name``.

        Raises:
            NotFoundError: there is none, or it cannot be imported.
            InvalidInputError: two packages offer different objects by this name.
        """
        self.check(name)
        found = self.built_in.get(name)
        if found is None or isinstance(found, str):
            return import_object(self.path(name), self.kind)
        return found

    def find_class(self, name: str, base: type) -> Any:
        """The class called ``name``, which is derived from ``base``.

        Raises:
            NotFoundError, InvalidInputError: as ``find``; or it is no such class.
        """
        found = self.find(name)
        if isinstance(found, type) and issubclass(found, base):
            return found
        described = f"{found!r:.80}, and no class"
        if isinstance(found, type):
            described = f"the class {found.__qualname__}, derived from {found.__mro__[1].__name__}"
        allowed = f"a class derived from {base.__name__}"
        raise InvalidInputError.of(self.kind, name, allowed, f"It is {described}.")

    def path(self, name: str) -> str:
        """``module:attribute`` of the object called ``name``; ``name`` itself if it is unknown.

        Raises:
            InvalidInputError: two packages offer different objects by this name.
        """
        found = self.built_in.get(name)
        if found is not None:
            return found if isinstance(found, str) else f"{found.__module__}:{found.__qualname__}"
        points = self._offered().get(name, [])
        paths = {point.value for point in points}
        if len(paths) > 1:
            packages = ", ".join(sorted(point.dist.name for point in points if point.dist))
            raise InvalidInputError.of(
                self.kind,
                name,
                "a name that one package offers",
                f"These offer it: {packages}. Uninstall all but one.",
            )
        return next(iter(paths), name)

    def _offered(self) -> dict[str, list[EntryPoint]]:
        offered: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group) if self.group else ():
            offered.setdefault(point.name, []).append(point)
        return offered


def import_object(path: str, kind: str) -> Any:
    """The object that ``path`` names; importing its module runs that module's code.

    Args:
        path: ``package.module:attribute``; dots after the colon go deeper.
        kind: what it is for; begins the error.

    Raises:
        NotFoundError: it cannot be imported; tells the reason, whatever it is.
    """
    module, _, attribute = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except FOREIGN_ERRORS as error:
        raise NotFoundError(
            f"{kind} {path!r} cannot be imported: {type(error).__name__}: {error}"
            f"{_next_step(module, error)}"
        ) from error
    return found


def _next_step(module: str, error: BaseException) -> str:
    """Advice for a module that was not found; a module that raised is its author's business."""
    if "/" in module or module.endswith(".py"):
        name = module.rpartition("/")[2].removesuffix(".py")
        return f". Name the module, not the file: {name}:..., with its folder on PYTHONPATH."
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return ". Put the folder that it is in on PYTHONPATH, or install its package."
    return ""
