"""Settings files: read, and what is wrong with them in the house's words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from modelless.variants.errors import InvalidInputError

_ALLOWED: Final = "allowed: "
_WORDS: Final = {
    "missing": "it must be given",
    "extra_forbidden": "there is no such key",
    "string_type": f"{_ALLOWED}text",
    "tuple_type": f"{_ALLOWED}a list",
    "list_type": f"{_ALLOWED}a list",
    "dict_type": f"{_ALLOWED}a mapping",
    "model_type": f"{_ALLOWED}a mapping",
    "finite_number": f"{_ALLOWED}a finite number",
}
_BRANCH: Final = re.compile(r"str|int|float|bool|\w+\[.*\]")
"""What Pydantic puts behind a field for each type that it may be of."""


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
    """Every problem that a validation found, each with its field, its value and what is allowed.

    Of a field that may be one of several types it is one problem, with what each of them allows.
    """
    got: dict[str, str] = {}
    wrong: dict[str, list[str]] = {}
    for problem in error.errors():
        parts = [str(part) for part in problem["loc"]]
        field = ".".join(part for part in parts if not _BRANCH.fullmatch(part)) or "(top)"
        is_missing = problem["type"] == "missing"
        got[field] = "nothing" if is_missing else f"{problem.get('input')!r:.80}"
        wrong.setdefault(field, []).append(_words(problem["type"], problem["msg"]))
    return "; ".join(f"{field}: got {got[field]}; {_joined(wrong[field])}" for field in wrong)


def _words(kind: str, message: str) -> str:
    """Pydantic's message, without what it says of Python."""
    if kind in _WORDS:
        return _WORDS[kind]
    return message.removeprefix("Value error, ").replace("Input should be ", _ALLOWED, 1)


def _joined(messages: list[str]) -> str:
    if all(message.startswith(_ALLOWED) for message in messages):
        return _ALLOWED + ", or ".join(message.removeprefix(_ALLOWED) for message in messages)
    return "; ".join(messages)
