"""The command line put together: global options, commands, examples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from modelless.controller.cli import (
    cluster_commands,
    compare_command,
    costmodel_commands,
    demo_command,
    device_command,
    engines_command,
    history_command,
    infer_command,
    make_command,
    profile_command,
    profile_report_command,
    rebuild_command,
    register_command,
    replay_command,
    select_command,
    simulate_command,
    upgrade_command,
    validate_command,
    variants_command,
    versions_commands,
    why_command,
    zoo_commands,
)
from modelless.controller.cli.failures import ReportingGroup

STORE_VARIABLE = "MODELLESS_STORE_URL"
EPILOG = (
    "Example: modelless zoo add imagenet && modelless profile imagenet --budget 90s "
    "&& modelless up --detach && modelless infer cat.jpg --task imagenet --latency-ms 40"
)

app = typer.Typer(
    name="modelless",
    cls=ReportingGroup,
    rich_markup_mode=None,  # importing what draws boxes around help takes longer than all the rest
    pretty_exceptions_enable=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from modelless import __version__

        typer.echo(f"modelless {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def modelless(
    ctx: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            metavar="DIR",
            envvar="MODELLESS_HOME",
            help="Store, artifacts and logs; ~/.modelless by default. May stand anywhere.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            envvar=STORE_VARIABLE,
            help="SQL store, sqlite:///... or postgresql+psycopg://...; in the home by default.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Model-less inference serving: name a task and its limits; modelless chooses what runs it."""
    del version
    ctx.obj = (home or Path.home() / ".modelless").expanduser()
    if store:
        before = os.environ.get(STORE_VARIABLE)
        os.environ[STORE_VARIABLE] = store  # where the registry, here and in child processes, looks
        ctx.call_on_close(lambda: _restore(before))
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(STORE_VARIABLE, None)
    else:
        os.environ[STORE_VARIABLE] = before


app.add_typer(zoo_commands.app, name="zoo", epilog="Example: modelless zoo add imagenet")
app.command(epilog=register_command.EPILOG)(register_command.register)
app.command(epilog=make_command.EPILOG)(make_command.make)
app.command(epilog=rebuild_command.EPILOG)(rebuild_command.rebuild)
app.command(epilog=validate_command.EPILOG)(validate_command.validate)
app.command(epilog=variants_command.EPILOG)(variants_command.variants)
app.command(epilog=device_command.EPILOG)(device_command.device)
app.command(epilog=engines_command.EPILOG)(engines_command.engines)
app.command(epilog=profile_command.EPILOG)(profile_command.profile)
app.command("profile report", epilog=profile_report_command.EPILOG)(profile_report_command.report)
app.add_typer(costmodel_commands.app, name="costmodel", epilog=costmodel_commands.EPILOG)
app.command(epilog=versions_commands.PROMOTE_EPILOG)(versions_commands.promote)
app.command(epilog=versions_commands.CANARY_EPILOG)(versions_commands.canary)
app.command("canary status", epilog=versions_commands.STATUS_EPILOG)(
    versions_commands.canary_status
)
app.command(epilog=versions_commands.ROLLBACK_EPILOG)(versions_commands.rollback)
app.command(epilog=select_command.EPILOG)(select_command.select)
app.command(epilog=simulate_command.EPILOG)(simulate_command.simulate)
app.command(epilog=compare_command.EPILOG)(compare_command.compare)
app.command(epilog=cluster_commands.UP_EPILOG)(cluster_commands.up)
app.command(epilog=cluster_commands.STATUS_EPILOG)(cluster_commands.status)
app.command(epilog=upgrade_command.EPILOG)(upgrade_command.upgrade)
app.command(epilog=history_command.EPILOG)(history_command.history)
app.command(epilog=replay_command.EPILOG)(replay_command.replay)
app.command(epilog=why_command.EPILOG)(why_command.why)
app.command(epilog=infer_command.EPILOG)(infer_command.infer)
app.command(epilog=cluster_commands.DOWN_EPILOG)(cluster_commands.down)
app.command(epilog=demo_command.EPILOG)(demo_command.demo)
