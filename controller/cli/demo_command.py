"""``modelless demo``: the whole way on real photos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.screen import home_of

EPILOG = "Example: modelless demo --seconds 60 --report demo-report"


def demo(
    ctx: typer.Context,
    keep: Annotated[
        bool, typer.Option("--keep", help="Stay up afterwards, and say how to ask it more.")
    ] = False,
    report: Annotated[
        Path, typer.Option("--report", metavar="DIR", help="Where the report goes.")
    ] = Path("demo-report"),
    seconds: Annotated[
        float, typer.Option("--seconds", help="How long the burst of queries lasts.")
    ] = 120.0,
    port: Annotated[
        int, typer.Option("--port", help="Port to listen on; another one if it is taken.")
    ] = 8080,
) -> None:
    """Add, profile and serve real photos under many limits and load, and write a report.

    The models are the zoo's EfficientNet-Lite. Everything is taken down again, unless you give
    --keep.
    """
    if not 1.0 <= seconds <= 3600.0:
        raise InvalidInputError.of("seconds", seconds, "1 to 3600")
    if not 1 <= port <= 65_535:
        raise InvalidInputError.of("port", port, "1 to 65535")
    from modelless.controller.demo import run_demo

    code = run_demo(home_of(ctx), keep=keep, report_dir=report, seconds=seconds, port=port)
    if code:
        raise typer.Exit(code)
