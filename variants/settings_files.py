"""Settings files: read, and what is wrong with them in the house's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from modelless.variants.errors import InvalidInputError


def read_yaml(field: str, path: Path) -> Any:
    """What a YAML file holds; nothing is checked of it.

    Args:
        field: what the file is, for errors: ``config``, ``recipe``.
        path: of the file.

    Raises:
        InvalidInputError: no such file, or not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError.of(field, str(path), "a readable YAML file", str(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{field} {path}: not YAML: {error}") from None


def problems(error: ValidationError) -> str:
    """Every problem that a validation found, each with its field and value."""
    lines = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"]) or "(top)"
        lines.append(f"{field}: got {problem.get('input')!r:.80}; {problem['msg']}")
    return "; ".join(lines)
