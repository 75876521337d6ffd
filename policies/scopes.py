"""Scopes: what clients may ask for, from a whole task down to one version of one variant."""

from __future__ import annotations


def scopes_of(variant_id: str) -> tuple[str, ...]:
    """Every scope that takes the variant in, from its task down to itself."""
    parts = variant_id.partition("@")[0].split("/")
    scopes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return (*scopes, variant_id) if "@" in variant_id else tuple(scopes)


def task_of(scope: str) -> str:
    """The task that a scope, or the variant of an id, belongs to."""
    return scope.partition("/")[0]


def in_scope(variant_id: str, scope: str) -> bool:
    """Whether ``scope`` (``task[/model[/name[@version]]]``) takes the variant of that id in."""
    return f"{variant_id}/".startswith((f"{scope}/", f"{scope}@"))
