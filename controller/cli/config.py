"""``modelless config show``, ``set``, ``try``, ``diff``, ``history`` and ``rollback``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.arguments import seconds_of
from modelless.controller.cli.screen import Json, emit, number_text, say, show_table

if TYPE_CHECKING:
    from modelless.controller.live.settings_revisions import Revision
    from modelless.controller.usecases.config import Changed

Reason = Annotated[str, Option(metavar="TEXT", help="Why, for the history.")]


def show(
    ctx: typer.Context,
    key: Annotated[str, Argument(metavar="KEY", help="A key or a section; default: all.")] = "",
    as_json: Json = False,
) -> None:
    """Show the settings in force, where each is from, and the command that changes it.

    They are those of the last start with the changes made since. 'up' stands for a new start.

    Examples: modelless config show; modelless config show policies --json
    """
    from modelless.controller.usecases.config import show_settings

    rows = show_settings(key, home=ctx.obj)
    if not rows:
        raise InvalidInputError.of("KEY", key, "a key or section that 'modelless config show' has")
    if as_json:
        emit({"settings": rows})
        return
    show_table(
        ["key", "value", "from", "changed by"],
        [(row["key"], _text(row["value"]), row["source"], row["by"]) for row in rows],
        whole=0,
    )


def set_(
    ctx: typer.Context,
    values: Annotated[
        list[str] | None,
        Argument(metavar="KEY=VALUE", help="A setting and its value as in YAML; repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None, Option(metavar="KEY", help="End the change of a key; repeatable.")
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Change settings of the running cluster at once, and keep them for its next starts.

    They are checked as 'modelless up' checks them; nothing changes if one does not fit. No query is
    lost. What takes new processes is refused, with the command for it.

    Examples: modelless config set policies.selection=cheapest-feasible; modelless config set
    'policies.selection={policy: infaas, objective: accuracy}' tenants.shop.max_queries_per_s=50
    """
    from modelless.controller.usecases.config import change_settings

    if not values and not unset:
        raise InvalidInputError.of("KEY=VALUE", "nothing", "at least one, or --unset KEY")
    _tell(change_settings(read_values(values or []), unset=unset or (), reason=reason,
                          home=ctx.obj), as_json=as_json)  # fmt: skip


def try_(
    ctx: typer.Context,
    values: Annotated[
        list[str], Argument(metavar="KEY=VALUE", help="As for 'config set', of policies only.")
    ],
    since: Annotated[
        str, Option(metavar="TIME", help="How far back the queries go: 90s, 10m, 2h.")
    ] = "1h",
    runs: Annotated[int, Option(min=2, max=100, help="Simulated runs of each.")] = 5,
    as_json: Json = False,
) -> None:
    """Simulate the latest queries under the policies in force and under changed ones.

    The queries are those of the receipts on this machine, at most the newest 10,000. Both meet the
    same queries on the same devices; the difference has an interval of 95 %. Nothing is changed.

    Example: modelless config try policies.selection=cheapest-feasible --since 30m
    """
    from modelless.controller.usecases.config import try_settings

    found = try_settings(read_values(values), back_s=seconds_of("--since", since), runs=runs,
                         home=ctx.obj)  # fmt: skip
    if as_json:
        emit(found)
        return

    def text(row: dict[str, float | None], which: str = "mean") -> str:
        return number_text(row[which], "{:.4g}")

    show_table(
        ["figure", "now", "then", "difference", "95 % interval"],
        [
            (
                name.replace("_", " "),
                *(text(row[which]) for which in ("now", "then", "difference")),
                f"{text(row['difference'], 'low')} to {text(row['difference'], 'high')}",
            )
            for name, row in found["figures"].items()
        ],
        title=f"{found['queries']} queries over {found['span_s']:.0f} s, {runs} runs of each",
        right=range(1, 5),
        whole=0,
    )  # fmt: skip
    if found["left_out"]:
        say(
            f"note: {found['left_out']} receipts are left out: of more items than a batch may "
            "have, or for variants that are gone"
        )


def rollback(
    ctx: typer.Context,
    revision: Annotated[
        int | None, Argument(min=0, help="To go back to; 0: no changes; default: the one before.")
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Take the latest change of settings back, or all since a revision.

    That is a new revision, so a rollback can be taken back, too.

    Examples: modelless config rollback; modelless config rollback 3
    """
    from modelless.controller.usecases.config import roll_back_settings

    _tell(roll_back_settings(revision, reason=reason, home=ctx.obj), as_json=as_json)


def history(ctx: typer.Context, as_json: Json = False) -> None:
    """List the revisions of the settings: when, who, why, and all that they change.

    Example: modelless config history
    """
    from modelless.controller.usecases.config import list_revisions

    found = list_revisions(home=ctx.obj)
    if as_json:
        emit({"revisions": [_document(each) for each in found]})
    elif not found:
        typer.echo("no setting was changed since the start")
    else:
        show_table(
            ["revision", "when (UTC)", "who", "why", "changes"],
            [
                (
                    str(each.number),
                    each.at.strftime("%Y-%m-%d %H:%M:%S") if each.at else "",
                    each.who,
                    each.reason,
                    "; ".join(f"{key}={_text(value)}" for key, value in each.changes.items()),
                )
                for each in found
            ],
            right=[0],
        )


def diff(
    ctx: typer.Context,
    before: Annotated[
        int | None, Argument(min=0, help="A revision; default: the one before the other.")
    ] = None,
    after: Annotated[int | None, Argument(min=0, help="Default: the latest revision.")] = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two revisions of the settings.

    Revision 0 are the settings of the last start.

    Examples: modelless config diff; modelless config diff 0 4
    """
    from modelless.controller.usecases.config import compare_revisions

    old, new, lines = compare_revisions(before, after, home=ctx.obj)
    if as_json:
        emit({"before": old, "after": new, "difference": lines})
    else:
        typer.echo("\n".join(lines) or f"revisions {old} and {new} do not differ")


def read_values(texts: list[str]) -> dict[str, Any]:
    """Values by key, of ``KEY=VALUE`` with the value in YAML, each key once; InvalidInputError."""
    from modelless.common.yaml_files import parse_yaml

    found: dict[str, Any] = {}
    for text in texts:
        key, is_set, value = text.partition("=")
        key = key.strip()
        if not is_set or not key:
            raise InvalidInputError.of("KEY=VALUE", text, "a key, '=' and a value as in YAML")
        if key in found:
            raise InvalidInputError.of("KEY=VALUE", text, f"{key} once; it is there already")
        found[key] = parse_yaml(f"KEY=VALUE {text}", value)
    return found


def _tell(made: Changed, *, as_json: bool) -> None:
    if as_json:
        emit({**asdict(made), "revision": _document(made.revision)})
        return
    number = made.revision.number
    for line in made.difference:
        typer.echo(line)
    if made.gateways is None:
        typer.echo(f"revision {number}; nothing is up, it holds from the next start")
        return
    typer.echo(f"revision {number} at {made.gateways} gateways after {made.took_s:.1f} s")
    if made.behind:
        say(f"not yet at {', '.join(made.behind)}: their logs in run/logs of the home say why")


def _document(revision: Revision) -> dict[str, Any]:
    at = revision.at.isoformat() if revision.at is not None else None
    return {**revision._asdict(), "at": at}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
