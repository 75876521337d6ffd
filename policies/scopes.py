"""Scopes: what clients may ask for, from a whole task to one version of one variant.

While a version is on trial, the queries that it or the current version could serve are divided
between two *arms*. The scope of an arm names its version: ``imagenet with imagenet/lite0/int8@2``
contains that version of ``imagenet/lite0/int8`` and no other, and all other variants; ``imagenet
without imagenet/lite0/int8@2`` contains all but that version. Neither arm contains the other's
version.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_WITH: Final = "with"
_WITHOUT: Final = "without"


def scopes_of(variant_id: str) -> tuple[str, ...]:
    """Returns every scope that contains the variant, from its task to itself."""
    parts = variant_id.partition("@")[0].split("/")
    scopes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return (*scopes, variant_id) if "@" in variant_id else tuple(scopes)


def task_of(scope: str) -> str:
    """Returns the task of a scope or of a variant's id."""
    return base_of(scope).partition("/")[0]


def base_of(scope: str) -> str:
    """Returns the scope without an arm, which is what the client asked for."""
    return scope.partition(" ")[0]


def arm_of(scope: str, variant_id: str, *, on_trial: bool) -> str:
    """Returns the scope of an arm.

    Args:
        scope: the scope that the client asked for.
        variant_id: id of the version on trial.
        on_trial: whether the arm is that of the version on trial.
    """
    return f"{scope} {_WITH if on_trial else _WITHOUT} {variant_id}"


def own_of(arm: str) -> str:
    """Returns the scope of the versions of the variant on trial that only this arm contains.

    A scope that is no arm is returned as it is.
    """
    _, is_arm, rest = arm.partition(" ")
    if not is_arm:
        return arm
    word, _, variant_id = rest.partition(" ")
    return f"{variant_id.partition('@')[0]} {word} {variant_id}"


@lru_cache(maxsize=1 << 16)  # asked for each variant and queue of each decision
def in_scope(variant_id: str, scope: str) -> bool:
    """Returns whether a scope or arm contains the variant.

    Args:
        variant_id: id of the variant.
        scope: ``task[/model[/name[@version]]]``, or an arm.
    """
    base, is_arm, arm = scope.partition(" ")
    if not f"{variant_id}/".startswith((f"{base}/", f"{base}@")):
        return False
    if not is_arm:
        return True
    word, _, on_trial = arm.partition(" ")
    if variant_id == on_trial:
        return word == _WITH
    return word == _WITHOUT or variant_id.partition("@")[0] != on_trial.partition("@")[0]
