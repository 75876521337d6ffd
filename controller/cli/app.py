"""The command line put together: global options, commands, examples."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from modelless.common.files import default_home, expanded
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
    ctx.obj = expanded("--home", home) if home else default_home()
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


def _add(group: typer.Typer, command: Callable[..., None], name: str) -> None:
    """Add a command; the last paragraph of its docstring is the example below its help."""
    words, _, example = (inspect.getdoc(command) or "").rpartition("\n\n")
    cls = cost_model.TablesAfterTrain if command is cost_model.evaluate else None
    group.command(name, cls=cls, help=words, epilog=" ".join(example.split()))(command)


_GROUPS: tuple[tuple[str, str, str, dict[str, Callable[..., None]]], ...] = (
    ("zoo", "Models that come with modelless, or can be installed.", "zoo add imagenet",
     {"list": registering.zoo_list, "add": registering.zoo_add}),
    ("costmodel", "The learned cost model.", "costmodel evaluate profiles.csv",
     {"evaluate": cost_model.evaluate, "import": cost_model.import_, "list": cost_model.list_,
      "remove": cost_model.remove, "predict": cost_model.predict}),
    ("key", "Keys for clients and operators.", "key create --tenant shop",
     {"create": keys.create, "list": keys.list_, "revoke": keys.revoke}),
    ("store", "The store as a whole.", "store backup monday.zip",
     {"migrate": store_commands.migrate, "backup": store_commands.backup,
      "restore": store_commands.restore}),
    ("config", "Settings of the running cluster.", "config set policies.explore=0.02",
     {"show": config.show, "set": config.set_, "try": config.try_, "diff": config.diff,
      "history": config.history, "rollback": config.rollback}),
)  # fmt: skip
"""Commands of commands: name, help, example and the commands."""

for _group, _text, _example, _commands in _GROUPS:
    _typer = typer.Typer(help=_text)
    for _name, _command in _commands.items():
        _add(_typer, _command, _name)
    app.add_typer(_typer, name=_group, epilog=f"Example: modelless {_example}")
for _command in (
    registering.register, making.make, making.rebuild, validating.validate, registering.variants,
    profiling.device, profiling.engines, status.doctor, profiling.profile,
    profiling.profile_report, versions.promote, versions.canary, versions.canary_status,
    versions.rollback, querying.select, querying.quote, simulating.simulate, simulating.compare,
    simulating.tune, cluster.up, status.status, status.top, cluster.upgrade, decisions.history,
    simulating.replay, decisions.why, decisions.receipts, decisions.whatif, querying.infer,
    querying.batch, cluster.down, cluster.demo, versions.remove, versions.retire,
):  # fmt: skip
    _add(app, _command, _command.__name__.replace("_", " "))
