"""Scopes: what clients may ask for, from a whole task down to one version of one variant.

While a version is on trial, the queries that it or the current version could serve are dealt out to
two *arms*, whose scopes say which version is theirs: ``imagenet with imagenet/lite0/int8@2`` takes
in that version of ``imagenet/lite0/int8`` and no other, and of other variants all;
``imagenet without imagenet/lite0/int8@2`` all but that version. Neither arm sees the other's.
"""

from __future__ import annotations

from typing import Final

_WITH: Final = "with"
_WITHOUT: Final = "without"


def scopes_of(variant_id: str) -> tuple[str, ...]:
    """Every scope that takes the variant in, from its task down to itself."""
    parts = variant_id.partition("@")[0].split("/")
    scopes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return (*scopes, variant_id) if "@" in variant_id else tuple(scopes)


def task_of(scope: str) -> str:
    """The task that a scope, or the variant of an id, belongs to."""
    return base_of(scope).partition("/")[0]


def base_of(scope: str) -> str:
    """What the client asked for: the scope without an arm."""
    return scope.partition(" ")[0]


def arm_of(scope: str, variant_id: str, *, on_trial: bool) -> str:
    """The scope of an arm.

    Args:
        scope: what the client asked for.
        variant_id: of the version on trial.
        on_trial: whether the arm is that of the version on trial.
    """
    return f"{scope} {_WITH if on_trial else _WITHOUT} {variant_id}"


def own_of(arm: str) -> str:
    """The scope of what an arm has for itself: the versions of the variant on trial that are its.

    Of a scope that is no arm it is the scope itself.
    """
    _, is_arm, rest = arm.partition(" ")
    if not is_arm:
        return arm
    word, _, variant_id = rest.partition(" ")
    return f"{variant_id.partition('@')[0]} {word} {variant_id}"


def in_scope(variant_id: str, scope: str) -> bool:
    """Whether ``scope`` (``task[/model[/name[@version]]]``, or an arm) takes the variant in."""
    base, is_arm, arm = scope.partition(" ")
    if not f"{variant_id}/".startswith((f"{base}/", f"{base}@")):
        return False
    if not is_arm:
        return True
    word, _, on_trial = arm.partition(" ")
    if variant_id == on_trial:
        return word == _WITH
    return word == _WITHOUT or variant_id.partition("@")[0] != on_trial.partition("@")[0]
