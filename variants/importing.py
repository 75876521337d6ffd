"""Finding an object of importable code by ``package.module:attribute``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from modelless.variants.errors import NotFoundError


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
    except Exception as error:  # (whatever somebody else's module raises is told)
        raise NotFoundError(
            f"{what} {path!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return found
