"""The settings: those in force, their revisions, and changing them while modelless serves."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from modelless.common.errors import InvalidInputError, ModellessError, NotFoundError
from modelless.controller.assembly import check_policies
from modelless.controller.config import Settings, changed_by, flatten, with_changes
from modelless.controller.history.audit import user_name
from modelless.controller.history.receipts import WantedReceipts, read_receipts, receipts_folder
from modelless.controller.live import settings_revisions as revisions
from modelless.controller.live.cluster.running import read_state
from modelless.controller.live.knowledge import Knowledge, read_knowledge
from modelless.controller.live.settings_revisions import Revision
from modelless.controller.sim.compare.compare import compare, scenarios_of
from modelless.controller.sim.compare.comparison import table
from modelless.controller.sim.compare.contenders import Contender
from modelless.controller.sim.worlds.world import parse_world
from modelless.controller.usecases.cluster import status
from modelless.controller.usecases.home import Home, home_folder, open_home
from modelless.policies.scopes import base_of, task_of

_MOST: Final = 1000
_MOST_TRIED: Final = 10_000
_PATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.05
TRIED: Final = ("attainment", "mean_accuracy", "cost_usd_per_million", "value_per_query")
"""The figures that a simulated change is judged by; see ``comparison.COMPARED``."""


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
    base, latest = _base_and_latest(home)
    document = with_changes(base, latest.changes).model_dump(mode="json")
    default, started = (flatten(each.model_dump(mode="json")) for each in (Settings(), base))
    rows = []
    for name, value in flatten(document).items():
        if not _is_within(name, key):
            continue
        is_default = name in default and started.get(name) == default[name]
        source = "default" if is_default else "start"
        if any(_is_within(name, each) or _is_within(each, name) for each in latest.changes):
            source = f"revision {latest.number}"
        rows.append({"key": name, "value": value, "source": source, "by": changed_by(name)})
    return rows


def _base_and_latest(home: Home) -> tuple[Settings, Revision]:
    """The settings of the last start, and the latest revision of them."""
    with open_home(home) as registry:
        return revisions.read_base(registry.store), revisions.read_revision(registry.store)


def change_settings(
    values: Mapping[str, Any], *, unset: Collection[str] = (), reason: str = "", home: Home = None
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


def try_settings(
    values: Mapping[str, Any], *, back_s: float = 3600.0, runs: int = 5, home: Home = None
) -> dict[str, Any]:
    """Simulate the latest traffic under the policies in force and under others, paired by seed.

    The queries are those of the receipts on this machine, each as often as its weight says, and at
    most 10,000 of the newest. The devices are those of the running cluster, with the profiles of
    its store.

    Args:
        values: changes of ``policies``, by dotted key.
        back_s: how far the receipts go back, seconds.
        runs: simulated runs of each, for the intervals.

    Returns:
        ``queries``, ``span_s`` and ``runs``; ``left_out``, the receipts of queries that no policy
        could have served: of more items than a batch may have, or for variants that are gone; and
        as ``figures`` by name the intervals ``now``, ``then`` and ``difference``, each with
        ``mean``, ``low`` and ``high`` (95 %).

    Raises:
        InvalidInputError: a value that does not fit, or a key that is no policy's.
        NotFoundError: there is no receipt to go by.
        ModellessError: nothing is up.
    """
    for key in values:
        if not _is_within(key, "policies"):
            allowed = "policies and what is below them; the simulator knows no other change"
            raise InvalidInputError.of("key", key, allowed)
    folder = home_folder(home)
    base, latest = _base_and_latest(home)
    now, then = (with_changes(base, {**latest.changes, **more}) for more in ({}, values))
    check_policies(then)
    receipts = read_receipts(
        receipts_folder(folder),
        WantedReceipts(since=datetime.now(UTC) - timedelta(seconds=back_s), most=_MOST_TRIED),
    )
    knowledge = read_knowledge(folder, now)
    scopes = _known_scopes(knowledge, {base_of(each["scope"]) for each in receipts})
    usable = [
        each
        for each in receipts
        if 1 <= each["items"] <= now.limits.max_batch and base_of(each["scope"]) in scopes
    ]
    with TemporaryDirectory() as scratch:
        count, span_s = _write_trace(Path(scratch) / "trace.csv", usable)
        world = _world_of(now, knowledge, status(home=home)["members"], usable)
        file = parse_world(world, Path(scratch))
        contenders = [
            Contender(name, settings.policies.model_dump(mode="json"))
            for name, settings in (("now", now), ("then", then))
        ]
        runs_made = compare(
            scenarios_of([file]), contenders, range(1, runs + 1), bound=False, only_table=True,
            home=folder,
        )  # fmt: skip
    before, after = table(runs_made)
    if problem := before["error"] or after["error"]:
        raise ModellessError(f"the simulation failed: {problem}")
    figures = {
        name: {"now": before[name], "then": after[name], "difference": after[f"{name}_difference"]}
        for name in TRIED
    }
    return {
        "queries": count, "left_out": len(receipts) - len(usable), "span_s": span_s, "runs": runs,
        "figures": figures,
    }  # fmt: skip


def _known_scopes(knowledge: Knowledge, scopes: Collection[str]) -> set[str]:
    known = set()
    for scope in scopes:
        with suppress(NotFoundError):
            knowledge.catalog.resolve(scope)
            known.add(scope)
    return known


def _write_trace(path: Path, receipts: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Write the receipts' queries; returns how many these are, and over how many seconds."""
    if not receipts:
        raise NotFoundError(
            "there are no receipts of that time to simulate: serve queries first "
            "(history.receipts_per_s must not be 0), or go further back"
        )
    rng = np.random.default_rng(0)
    rows = []
    for each in reversed(receipts):  # the newest first
        at_s = datetime.fromisoformat(each["arrived_at"]).timestamp()
        weight = each.get("weight") or 1.0
        copies = int(weight) + (rng.random() < weight % 1.0)
        spread_s = rng.random(copies) if copies > 1 else np.zeros(copies)
        limits = (
            "" if each["is_default_latency"] else each["latency_ms"], each["min_accuracy"],
            "" if each["max_cost_usd"] is None else each["max_cost_usd"], each["tenant"],
            each["priority"] or "", each["items"], each["when_late"],
        )  # fmt: skip
        rows += [(at_s + more_s, base_of(each["scope"]), *limits) for more_s in spread_s.tolist()]
        if len(rows) >= _MOST_TRIED:
            break
    rows.sort(key=lambda row: row[0])
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("arrival_s", "task", "latency_ms", "min_accuracy", "max_cost_usd",
                         "tenant", "priority", "items", "when_late"))  # fmt: skip
        writer.writerows((f"{at_s - rows[0][0]:.6f}", *rest) for at_s, *rest in rows)
    return len(rows), rows[-1][0] - rows[0][0]


def _world_of(
    settings: Settings,
    knowledge: Knowledge,
    members: Sequence[Mapping[str, Any]],
    receipts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The running cluster as a world whose queries are those of the trace."""
    there = [each for each in members if each["device_class"]]
    bounds = {pool.device_class: pool for pool in settings.pools}
    devices = []
    for name, count in Counter(each["device_class"] for each in there).items():
        device = knowledge.device_class(name)
        budgets = [m["memory_budget_bytes"] for m in there if m["device_class"] == name]
        pool = bounds.get(name)
        devices.append(
            {
                "name": name, "kind": device.kind, "count": count, "threads": device.threads,
                "memory_mib": max(budgets) / 2**20, "power_w": device.power_w,
                "price_usd_per_hour": device.price_usd_per_hour,
                "min_workers": min(pool.min_workers, count) if pool else count,
                "max_workers": max(pool.max_workers, count) if pool else count,
            }
        )  # fmt: skip
    tasks = sorted({task_of(base_of(each["scope"])) for each in receipts})
    return {
        "name": "the running cluster",
        "devices": devices,
        "tasks": [{"name": name, "variants": {"kind": "store"}} for name in tasks],
        "queries": [{"tasks": tasks, "arrivals": {"kind": "trace", "path": "trace.csv"}}],
        "policies": settings.policies.model_dump(mode="json"),
        "limits": {
            "default_latency_ms": settings.limits.default_latency_ms,
            "max_queued": settings.limits.max_queued,
            "max_batch": settings.limits.max_batch,
        },
    }
