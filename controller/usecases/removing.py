"""Removing and retiring: tasks, models and variants that nobody needs any more."""

from __future__ import annotations

from contextlib import ExitStack

from modelless.common.locks import held
from modelless.controller.live.cluster.cluster import read_state
from modelless.controller.usecases.cluster import status as read_status
from modelless.controller.usecases.family import FOLDER
from modelless.controller.usecases.home import Home, home_folder, open_home, user_name
from modelless.variants.paths import parse_path
from modelless.variants.registry import removal
from modelless.variants.registry.removal import Removed

_REASON = "by command"


def remove(name: str, *, reason: str | None = None, home: Home = None) -> Removed:
    """Remove a task, a model, a variant or one version, with profiles and files.

    A version that was removed is never given again. The history stays.

    Args:
        name: ``task``, ``task/model``, ``task/model/variant`` or ``...@version``.

    Raises:
        NotFoundError: there is no such thing.
        InvalidInputError: it is in use; says by what, and what to do.
        EnvironmentUnfitError: another process makes variants of it.
    """
    folder, path = home_folder(home), parse_path(name)
    with open_home(home) as registry, ExitStack() as locks:
        models = [path.model] if path.model else [m.name for m in registry.models(path.task)]
        for model in models:
            lock = folder / FOLDER / f"{path.task}--{model}.lock"
            locks.enter_context(held(lock, f"removing {name}"))
        is_up = read_state(folder) is not None
        return removal.remove(
            registry, name, user_name(), reason or _REASON, _held_now(home), is_up=is_up
        )


def retire(
    name: str, *, undo: bool = False, reason: str | None = None, home: Home = None
) -> tuple[str, ...]:
    """Take the variants of a scope out of service, and return their names; they stay registered.

    Args:
        name: ``task``, ``task/model`` or ``task/model/variant``.

    Raises:
        NotFoundError: there is no such thing.
        InvalidInputError: it is in use, or there is nothing to do.
    """
    with open_home(home) as registry:
        return removal.retire(
            registry, name, user_name(), reason or _REASON, _held_now(home), undo=undo
        )


def _held_now(home: Home) -> dict[str, str]:
    """Returns the holders of variants in the cluster that runs from this home, by variant id."""
    if read_state(home_folder(home)) is None:
        return {}
    return {
        variant_id: f"{member['role']} {member['id']}"
        for member in read_status(home=home).get("members", [])
        for variant_id in (*member.get("loaded", ()), *member.get("loading", ()))
    }
