"""The command line put together: global options, commands, examples."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from modelless.controller.cli import (
    cluster,
    config,
    cost_model,
    decisions,
    keys,
    making,
    profiling,
    querying,
    registering,
    simulating,
    status,
    validating,
    versions,
)
from modelless.controller.cli import store as store_commands
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


def _add(group: typer.Typer, command: Callable[..., None], name: str, cls: Any = None) -> None:
    """Add a command; the last paragraph of its docstring is the example below its help."""
    words, _, example = (inspect.getdoc(command) or "").rpartition("\n\n")
    group.command(name, cls=cls, help=words, epilog=" ".join(example.split()))(command)


zoo = typer.Typer(help="Models that come with modelless, or can be installed.")
_add(zoo, registering.zoo_list, "list")
_add(zoo, registering.zoo_add, "add")
app.add_typer(zoo, name="zoo", epilog="Example: modelless zoo add imagenet")
costmodel = typer.Typer(help="The learned cost model.", no_args_is_help=True)
_add(costmodel, cost_model.evaluate, "evaluate", cost_model.TablesAfterTrain)
_add(costmodel, cost_model.import_, "import")
_add(costmodel, cost_model.list_, "list")
_add(costmodel, cost_model.remove, "remove")
_add(costmodel, cost_model.predict, "predict")
app.add_typer(
    costmodel, name="costmodel", epilog="Example: modelless costmodel evaluate profiles.csv"
)
key = typer.Typer(help="Keys for clients and operators.", no_args_is_help=True)
_add(key, keys.create, "create")
_add(key, keys.list_, "list")
_add(key, keys.revoke, "revoke")
app.add_typer(key, name="key", epilog="Example: modelless key create --tenant shop")
stores = typer.Typer(help="The store as a whole.", no_args_is_help=True)
_add(stores, store_commands.migrate, "migrate")
_add(stores, store_commands.backup, "backup")
_add(stores, store_commands.restore, "restore")
app.add_typer(stores, name="store", epilog="Example: modelless store backup monday.zip")
settings = typer.Typer(help="Settings of the running cluster.", no_args_is_help=True)
_add(settings, config.show, "show")
_add(settings, config.set_, "set")
_add(settings, config.try_, "try")
_add(settings, config.diff, "diff")
_add(settings, config.history, "history")
_add(settings, config.rollback, "rollback")
app.add_typer(settings, name="config", epilog="Example: modelless config set policies.explore=0.02")
for _command in (
    *(registering.register, making.make, making.rebuild, validating.validate),
    *(registering.variants, profiling.device, profiling.engines, status.doctor),
    profiling.profile,
    *(profiling.profile_report, versions.promote, versions.canary, versions.canary_status),
    *(
        versions.rollback,
        querying.select,
        querying.quote,
        simulating.simulate,
        simulating.compare,
        simulating.tune,
        cluster.up,
    ),
    *(
        status.status,
        status.top,
        cluster.upgrade,
        decisions.history,
        simulating.replay,
        decisions.why,
    ),
    *(decisions.receipts, decisions.whatif),
    *(querying.infer, querying.batch, cluster.down, cluster.demo, versions.remove, versions.retire),
):
    _add(app, _command, _command.__name__.replace("_", " "))
