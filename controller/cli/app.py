"""The command line put together: global options, commands, examples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from modelless.controller.cli import (
    cluster,
    cost_model,
    decisions,
    making,
    profiling,
    querying,
    registering,
    simulating,
    validating,
    versions,
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
        Option(
            metavar="DIR",
            envvar="MODELLESS_HOME",
            help="Store, artifacts and logs; ~/.modelless by default. May stand anywhere.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        Option(
            metavar="URL",
            envvar=STORE_VARIABLE,
            help="SQL store, sqlite:///... or postgresql+psycopg://...; in the home by default.",
        ),
    ] = None,
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
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


app.add_typer(registering.zoo_app, name="zoo", epilog="Example: modelless zoo add imagenet")
app.add_typer(cost_model.app, name="costmodel", epilog=cost_model.EPILOG)
for _name, _command, _epilog in (
    ("register", registering.register, registering.REGISTER_EPILOG),
    ("make", making.make, making.MAKE_EPILOG),
    ("rebuild", making.rebuild, making.REBUILD_EPILOG),
    ("validate", validating.validate, validating.EPILOG),
    ("variants", registering.variants, registering.VARIANTS_EPILOG),
    ("device", profiling.device, profiling.DEVICE_EPILOG),
    ("engines", profiling.engines, profiling.ENGINES_EPILOG),
    ("profile", profiling.profile, profiling.PROFILE_EPILOG),
    ("profile report", profiling.report, profiling.REPORT_EPILOG),
    ("promote", versions.promote, versions.PROMOTE_EPILOG),
    ("canary", versions.canary, versions.CANARY_EPILOG),
    ("canary status", versions.canary_status, versions.STATUS_EPILOG),
    ("rollback", versions.rollback, versions.ROLLBACK_EPILOG),
    ("select", querying.select, querying.SELECT_EPILOG),
    ("simulate", simulating.simulate, simulating.SIMULATE_EPILOG),
    ("compare", simulating.compare, simulating.COMPARE_EPILOG),
    ("up", cluster.up, cluster.UP_EPILOG),
    ("status", cluster.status, cluster.STATUS_EPILOG),
    ("upgrade", cluster.upgrade, cluster.UPGRADE_EPILOG),
    ("history", decisions.history, decisions.HISTORY_EPILOG),
    ("replay", simulating.replay, simulating.REPLAY_EPILOG),
    ("why", decisions.why, decisions.WHY_EPILOG),
    ("infer", querying.infer, querying.INFER_EPILOG),
    ("down", cluster.down, cluster.DOWN_EPILOG),
    ("demo", cluster.demo, cluster.DEMO_EPILOG),
):
    app.command(_name, epilog=_epilog)(_command)
