"""What all parts of a world file have in common, and how their mistakes are told."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from modelless.variants.errors import InvalidInputError


class Section(BaseModel):
    """A part of a world: frozen, unknown fields refused, numbers finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def read_yaml(path: Path) -> object:
    """The document in a YAML file.

    Raises:
        InvalidInputError: no such file, or not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError.of("world", str(path), "a readable YAML file", str(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"world {path}: not YAML: {' '.join(str(error).split())}") from None


def explain(error: ValidationError, source: str) -> InvalidInputError:
    """Every problem with its place, e.g. ``devices.0.count``, and what stood there."""
    lines = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"]) or "(top)"
        lines.append(f"{place}: got {problem.get('input')!r:.80}; {problem['msg']}")
    return InvalidInputError(f"{source}: " + "; ".join(lines))
