"""Finding an object of importable code by ``package.module:attribute``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from modelless.common.errors import FOREIGN_ERRORS, NotFoundError


def import_object(path: str, what: str) -> Any:
    """What ``path`` names; importing its module runs that module's code.

    Args:
        path: ``package.module:attribute``; dots after the colon go deeper.
        what: what it is for, to begin the error with.

    Raises:
        NotFoundError: it cannot be imported, whatever the reason; the reason is told.
    """
    module, _, attribute = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except FOREIGN_ERRORS as error:  # (whatever somebody else's module raises is told)
        raise NotFoundError(
            f"{what} {path!r} cannot be imported: {type(error).__name__}: {error}"
            f"{_next_step(module, error)}"
        ) from error
    return found


def _next_step(module: str, error: BaseException) -> str:
    """What to do where the module was not found; where it raised it is for its author to see."""
    if "/" in module or module.endswith(".py"):
        name = module.rpartition("/")[2].removesuffix(".py")
        return f". Name the module, not the file: {name}:..., with its folder on PYTHONPATH."
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return ". Put the folder that it is in on PYTHONPATH, or install its package."
    return ""
