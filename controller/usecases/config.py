"""The settings: those in force, their revisions, and changing them while modelless serves."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from modelless.common.errors import ModellessError
from modelless.controller.config import Settings, changed_by, flatten, with_changes
from modelless.controller.live import revisions
from modelless.controller.live.cluster.cluster import read_state
from modelless.controller.live.revisions import Revision
from modelless.controller.usecases.cluster import status
from modelless.controller.usecases.home import Home, home_folder, open_home, user_name

_MOST: Final = 1000
_PATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Changed:
    """A new revision.

    Attributes:
        difference: a line for each key whose value changed.
        gateways: how many go by it; None: nothing is up, it holds from the next start.
        behind: ids of gateways that do not go by it yet.
        took_s: until they did, seconds.
    """

    revision: Revision
    difference: tuple[str, ...]
    gateways: int | None
    behind: tuple[str, ...]
    took_s: float


def show_settings(key: str = "", *, home: Home = None) -> list[dict[str, Any]]:
    """Every setting in force: its key, value, where that is from and how to change it.

    Args:
        key: a key or section to narrow it to.
    """
    with open_home(home) as registry:
        base, latest = revisions.read_base(registry.store), revisions.read_revision(registry.store)
    document = with_changes(base, latest.changes).model_dump(mode="json")
    default, started = (flatten(each.model_dump(mode="json")) for each in (Settings(), base))
    rows = []
    for name, value in flatten(document).items():
        changed = (each for each in latest.changes if _is_within(name, each))
        below = (each for each in latest.changes if _is_within(each, name))
        is_default = name in default and started.get(name) == default[name]
        source = "default" if is_default else "start"
        if next(changed, None) or next(below, None):
            source = f"revision {latest.number}"
        if _is_within(name, key):
            rows.append({"key": name, "value": value, "source": source, "by": changed_by(name)})
    return rows


def change_settings(
    values: Mapping[str, Any],
    *,
    unset: Collection[str] = (),
    reason: str = "",
    home: Home = None,
) -> Changed:
    """Check settings as ``up`` does, write them as a revision, and wait until gateways have them.

    No query is lost: those that wait go by the new policies.

    Args:
        values: by dotted key, such as ``policies.selection``.
        unset: keys whose changes are to end.
        reason: a sentence for the history.

    Raises:
        InvalidInputError: an unknown key, a value out of range, or one that takes an upgrade.
        NotFoundError: no such policy, or no such scope.
    """
    began_s, folder = time.monotonic(), home_folder(home)
    made = revisions.change_settings(folder, values, user_name(), unset=unset, reason=reason)
    return _follow(made, began_s, home)


def roll_back_settings(to: int | None = None, *, reason: str = "", home: Home = None) -> Changed:
    """Go back to an earlier revision, by default the one before the latest; 0 is the start."""
    began_s = time.monotonic()
    return _follow(revisions.roll_back(home_folder(home), user_name(), to=to, reason=reason),
                   began_s, home)  # fmt: skip


def list_revisions(*, home: Home = None) -> list[Revision]:
    """The revisions, the newest first."""
    with open_home(home) as registry:
        return revisions.read_revisions(registry.store, _MOST)


def compare_revisions(
    before: int | None = None, after: int | None = None, *, home: Home = None
) -> tuple[int, int, list[str]]:
    """The difference of two revisions, a line a key; default: the latest and the one before."""
    with open_home(home) as registry:
        new = revisions.read_revision(registry.store, after)
        number = max(new.number - 1, 0) if before is None else before
        old, base = (
            revisions.read_revision(registry.store, number), revisions.read_base(registry.store)
        )  # fmt: skip
    settings = (with_changes(base, each.changes) for each in (old, new))
    return old.number, new.number, revisions.difference(*settings)


def _follow(made: Revision, began_s: float, home: Home) -> Changed:
    """Wait until every gateway goes by the revision."""
    *_, difference = compare_revisions(after=made.number, home=home)
    if read_state(home_folder(home)) is None:
        return Changed(made, tuple(difference), None, (), time.monotonic() - began_s)
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            members = status(home=home).get("members", ())
        except ModellessError:  # it is just being taken down, or a gateway replaced
            members = ()
        told = {each["id"]: each["revision"] for each in members if each["role"] == "gateway"}
        behind = tuple(name for name, revision in told.items() if revision < made.number)
        if (told and not behind) or time.monotonic() > end_s:
            took_s = time.monotonic() - began_s
            return Changed(made, tuple(difference), len(told) - len(behind), behind, took_s)
        time.sleep(_LOOK_S)


def _is_within(key: str, section: str) -> bool:
    return not section or key == section or key.startswith(f"{section}.")
