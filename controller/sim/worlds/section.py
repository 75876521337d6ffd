"""What all parts of a world file have in common, and how their mistakes are told."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from modelless.common.errors import InvalidInputError
from modelless.common.settings_files import problems


class Section(BaseModel):
    """A part of a world: frozen, unknown fields refused, numbers finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def explain(
    error: ValidationError, source: str, model: type[BaseModel] | None = None
) -> InvalidInputError:
    """Every problem with its place, e.g. ``devices.0.count``, and what stood there."""
    return InvalidInputError(f"{source}: {problems(error, model)}")
