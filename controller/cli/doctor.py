"""``modelless doctor``."""

from __future__ import annotations

import typer

from modelless.controller.cli.arguments import ConfigFile
from modelless.controller.cli.screen import Json, emit, show_table


def doctor(ctx: typer.Context, config: ConfigFile = None, as_json: Json = False) -> None:
    """Check machine, packages, home and settings: what would go wrong, and how to mend it.

    It looks at cores, memory, disk, open files, ports, versions, engines, the store, the home's
    rights and the clock. Nothing is started. The exit code is 1 if something would go wrong.

    Examples: modelless doctor; modelless doctor --config settings.yaml --json
    """
    from modelless.controller.usecases.doctor import document_of, examine

    checks = examine(config=config, home=ctx.obj)
    if as_json:
        emit(document_of(checks))
    else:
        show_table(
            ["", "check", "found", "to do"],
            [("ok" if c.is_well else "BAD", c.name, c.found, c.mend) for c in checks],
        )
    if not all(check.is_well for check in checks):
        raise typer.Exit(1)
