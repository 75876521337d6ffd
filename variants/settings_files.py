"""Pydantic's findings in the house's words: field, value received, what is wrong with it."""

from __future__ import annotations

from pydantic import ValidationError


def problems(error: ValidationError) -> str:
    """Every problem that a validation found, each with its field and value."""
    lines = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"]) or "(top)"
        lines.append(f"{field}: got {problem.get('input')!r:.80}; {problem['msg']}")
    return "; ".join(lines)
