"""``modelless zoo list`` and ``modelless zoo add``: models that come with it, or install."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.cli.register_command import variant_fields
from modelless.controller.cli.screen import (
    Json,
    Steps,
    emit,
    home_of,
    mebibytes,
    say,
    show_table,
)

if TYPE_CHECKING:
    from modelless.variants.registry.registry import Registry
    from modelless.variants.zoo import ZooEntry

app = typer.Typer(help="Models that come with modelless, or can be installed.")


@app.command("list", epilog="Example: modelless zoo list --json")
def list_entries(ctx: typer.Context, as_json: Json = False) -> None:
    """List the zoo's entries, and which of them are added."""
    from modelless.variants.registry.registry import open_registry
    from modelless.variants.zoo import ENTRIES

    with closing(open_registry(home_of(ctx))) as registry:
        rows = [_entry_fields(registry, name) for name in ENTRIES]
    if as_json:
        emit({"entries": rows})
        return
    show_table(
        ["name", "added", "variants registered", "what it is"],
        [
            (
                row["name"],
                "yes" if row["added"] else "no",
                str(row["registered"]),
                row["summary"] or f"not installed: {row['missing']}",
            )
            for row in rows
        ],
        caption="modelless zoo add NAME adds one",
        right=[2],
    )


@app.command("add", epilog="Example: modelless zoo add imagenet fashion-mnist")
def add(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Entries of 'zoo list'.")],
    force: Annotated[
        bool, typer.Option("--force", help="Build again, even if all of it is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build and register all variants of zoo entries.

    What is there already is left alone; damaged files are made again.
    """
    from modelless.controller.cli.zoo_adding import Added, add_entry
    from modelless.variants.registry.registry import open_registry
    from modelless.variants.zoo import find_entry

    entries = [find_entry(name) for name in dict.fromkeys(names)]
    results: dict[str, Added] = {}
    with closing(open_registry(home_of(ctx))) as registry:
        for entry in entries:
            with Steps(f"adding {entry.name}") as steps:
                try:
                    added = add_entry(registry, entry, partial(_show, steps), force=force)
                except KeyboardInterrupt:
                    steps.note(_interrupted(registry, entry))
                    raise
            results[entry.name] = added
            size = mebibytes(sum(variant.artifact_bytes for variant in added.variants))
            how = "already there" if added.was_there else f"{len(added.new)} of them new"
            say(f"{entry.name}: {len(added.variants)} variants, {size} MiB, {how}")
    if as_json:
        emit(
            {
                "entries": [
                    {
                        "name": name,
                        "was_there": added.was_there,
                        "new": sorted(added.new),
                        "variants": [variant_fields(variant) for variant in added.variants],
                    }
                    for name, added in results.items()
                ]
            }
        )
    else:
        say(f"next: modelless profile {' '.join(results)}")


def _entry_fields(registry: Registry, name: str) -> dict[str, Any]:
    from modelless.controller.cli.zoo_adding import added_before
    from modelless.variants.zoo import find_entry

    summary = missing = None
    try:
        summary = find_entry(name).summary
    except EnvironmentUnfitError as error:
        missing = str(error)
    return {
        "name": name,
        "summary": summary,
        "missing": missing,
        "added": bool(added_before(registry, name)),
        "registered": len(registry.variants(name)),
    }


def _show(steps: Steps, stage: str, done: int, total: int) -> None:
    steps.at(done, total, stage)


def _interrupted(registry: Registry, entry: ZooEntry) -> str:
    count = len(registry.variants(entry.name))
    if count == 0:
        return f"nothing of {entry.name} was registered"
    return f"{entry.name}: {count} variants are registered, each whole; add it again for the rest"
