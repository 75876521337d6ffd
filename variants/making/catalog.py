"""The makers by name, and how one is made from a recipe's words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.common.importing import import_object
from modelless.common.settings_files import problems
from modelless.variants.making.maker import Maker

_HOME: Final = "modelless.variants.making.makers"

BUILT_IN: Final[Mapping[str, str]] = {
    "bf16": f"{_HOME}.bf16:Bf16",
    "distil": f"{_HOME}.distil:Distil",
    "fine-tune": f"{_HOME}.fine_tune:FineTune",
    "fp16": f"{_HOME}.fp16:Fp16",
    "int4-weights": f"{_HOME}.int4_weights:Int4Weights",
    "int8-dynamic": f"{_HOME}.int8_dynamic:Int8Dynamic",
    "int8-static": f"{_HOME}.int8_static:Int8Static",
    "optimise": f"{_HOME}.optimise:Optimise",
    "prune-magnitude": f"{_HOME}.prune_magnitude:PruneMagnitude",
    "prune-structured": f"{_HOME}.prune_structured:PruneStructured",
    "resolution": f"{_HOME}.resolution:Resolution",
}
"""Where each maker lies, by name."""


def find_maker(name: str) -> type[Maker]:
    """The maker called ``name``: a built-in one, or ``module:Class`` of importable code.

    Raises:
        NotFoundError: nothing of that name; says what there is.
        InvalidInputError: it is there, but is no maker.
    """
    if name not in BUILT_IN and ":" not in name:
        near = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise NotFoundError(
            f"maker {name!r} does not exist; there are: {', '.join(BUILT_IN)}; "
            f"or name your own as 'module:Class'.{hint}"
        )
    found = import_object(BUILT_IN.get(name, name), "maker")
    if not (isinstance(found, type) and issubclass(found, Maker)):
        raise InvalidInputError.of("maker", name, "a class derived from Maker")
    return found


def build_maker(name: str, settings: Mapping[str, Any], place: str = "") -> Maker:
    """The maker called ``name`` with these settings.

    Args:
        place: where it stands, to begin the errors with.

    Raises:
        NotFoundError, InvalidInputError: as ``find_maker``; or a setting that it does not have, or
            a value that it does not take.
    """
    try:
        return find_maker(name)(**settings)
    except ValidationError as error:
        known = ", ".join(find_maker(name).model_fields) or "(none)"
        raise InvalidInputError(
            f"{place or name}: {problems(error)}; {name} has the settings {known}"
        ) from None
