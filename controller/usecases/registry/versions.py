"""What serves: versions, canaries, and taking out of service or away what nobody needs."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from modelless.common.files import held
from modelless.controller.control.canary_verdict import TrialEvidence, status_of
from modelless.controller.history.audit import note_act, user_name
from modelless.controller.live.cluster.running import read_state
from modelless.controller.usecases.cluster import status as read_status
from modelless.controller.usecases.home import Home, home_folder, open_home
from modelless.controller.usecases.progress import Note, Progress, ignore
from modelless.controller.usecases.registry.family import FOLDER
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.records import Records
from modelless.variants.paths import parse_path
from modelless.variants.registry import promotion, removal
from modelless.variants.registry.registry import Registry
from modelless.variants.registry.removal import Removed
from modelless.variants.registry.versions import Line, Trial, TrialRules

_REASON = "by command"
_MAKING = "It makes variants, and may need the same files. Wait until it has ended, then repeat."


def promote(
    version: str, *, reason: str | None = None, home: Home = None, on_progress: Progress = ignore
) -> Line:
    """Make ``task/model/variant@version`` the current version; returns the variant's versions.

    A running cluster loads it within seconds. A canary of the version ends.
    """
    note_act(home_folder(home), "promote", user_name(), version=version)
    with open_home(home) as registry:
        line = promotion.promote(registry.store, version, user_name(), reason or _REASON)
        _warn_if_unprofiled(registry, line.current_id, on_progress)
    return line


def roll_back(variant: str, *, reason: str | None = None, home: Home = None) -> Line:
    """Undo the last change to a variant: its canary, or else its latest promotion."""
    note_act(home_folder(home), "rollback", user_name(), variant=variant)
    with open_home(home) as registry:
        return promotion.rollback(registry.store, variant, user_name(), reason or _REASON)


def begin_canary(
    version: str,
    *,
    share: float = 0.05,
    rules: TrialRules | None = None,
    against: str | None = None,
    reason: str | None = None,
    home: Home = None,
    on_progress: Progress = ignore,
) -> Trial:
    """Try a version of a variant on a share of the queries, until a test promotes it or not.

    Args:
        version: ``task/model/variant@version``.
        share: of the queries that either version could serve, above 0 and up to 1.
        rules: of the test; default: ``TrialRules()``.
        against: ``@N`` or ``N``, the version to compare with; default: the current one.
        on_progress: receives a note if the version has no profile here.
    """
    other = None
    if against is not None:
        other = parse_path(f"{version.partition('@')[0]}@{against.removeprefix('@')}").version
    note_act(home_folder(home), "canary", user_name(), version=version, share=share)
    with open_home(home) as registry:
        trial = promotion.begin_trial(
            registry.store, version, share, rules or TrialRules(), user_name(), reason or _REASON,
            against=other,
        )  # fmt: skip
        _warn_if_unprofiled(registry, trial.variant_id, on_progress)
    return trial


def list_canaries(
    *, url: str | None = None, home: Home = None, on_progress: Progress = ignore
) -> list[dict[str, Any]]:
    """The evidence of canaries so far, from the running cluster or, if none is up, the store."""
    if url is not None or read_state(home_folder(home)) is not None:
        trials: list[dict[str, Any]] = read_status(url, home=home).get("trials", [])
        return trials
    with open_home(home) as registry:
        store = registry.store
        on = [line.trial for line in promotion.read_lines(store).by_name.values() if line.trial]
        kept = [
            status_of(trial, TrialEvidence.kept(promotion.read_evidence(store, trial)), time.time())
            for trial in on
        ]
    if kept:
        on_progress(Note("note: nothing is up: canaries go on with the next 'modelless up'"))
    return kept


def _warn_if_unprofiled(registry: Registry, variant_id: str, on_progress: Progress) -> None:
    rows = Records(registry.store).current(read_facts())
    if all(row.variant_id != variant_id for row in rows):
        lack = f"{variant_id} has no profile on this machine and is not served here until it has"
        on_progress(Note(f"note: {lack}: modelless profile {variant_id}"))


def remove(name: str, *, reason: str | None = None, home: Home = None) -> Removed:
    """Remove a task, a model, a variant or one version, with profiles and files.

    A version that was removed is never given again. The history stays.

    Args:
        name: ``task``, ``task/model``, ``task/model/variant`` or ``...@version``.

    Raises:
        NotFoundError: there is no such thing.
        InvalidInputError: it is in use; says by what, and what to do.
        EnvironmentUnfitError: another process makes variants.
    """
    folder, path = home_folder(home), parse_path(name)
    with open_home(home) as registry, ExitStack() as locks:
        models = [path.model] if path.model else [m.name for m in registry.models(path.task)]
        work = folder / FOLDER
        # Models share files, and those of a family in the making are in no row yet.
        every = {work / f"{path.task}--{model}.lock" for model in models} | {*work.glob("*.lock")}
        for lock in sorted(every):
            locks.enter_context(held(lock, f"removing {name}", _MAKING))
        is_up = read_state(folder) is not None
        return removal.remove(
            registry, name, user_name(), reason or _REASON, _held_now(home), work, is_up=is_up
        )


def retire(
    name: str, *, undo: bool = False, reason: str | None = None, home: Home = None
) -> tuple[str, ...]:
    """Take the variants of a scope out of service, and return their names; they stay registered.

    A running cluster answers the queries that it has, and lets in no new ones for them.

    Args:
        name: ``task``, ``task/model`` or ``task/model/variant``.

    Raises:
        NotFoundError: there is no such thing.
        InvalidInputError: one is in a canary, or there is nothing to do.
    """
    with open_home(home) as registry:
        return removal.retire(registry, name, user_name(), reason or _REASON, undo=undo)


def _held_now(home: Home) -> dict[str, str]:
    """Returns the holders of variants in the cluster that runs from this home, by variant id."""
    if read_state(home_folder(home)) is None:
        return {}
    return {
        variant_id: f"{member['role']} {member['id']}"
        for member in read_status(home=home).get("members", [])
        for variant_id in (*member.get("loaded", ()), *member.get("loading", ()))
    }
