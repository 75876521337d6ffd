"""``modelless compare``: policies against each other on the same queries, and against the bound."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelless.common.errors import EnvironmentUnfitError, InvalidInputError
from modelless.controller.cli.arguments import names_of
from modelless.controller.cli.screen import (
    Json,
    Steps,
    emit,
    home_of,
    others_print_to_stderr,
    say,
    show_table,
)

if TYPE_CHECKING:
    from modelless.controller.sim.compare.jobs import Run

EPILOG = (
    "Examples: modelless compare benchmarks/worlds/steady.yaml; "
    "modelless compare world.yaml --policies modelless,infaas,mine=suite.yaml --seeds 10 "
    "--load 0.5,1,1.5 --report comparison"
)

SHORT_LIST = "modelless,infaas,proteus,ray-serve,cheapest-feasible,most-accurate-feasible"


def compare(
    ctx: typer.Context,
    worlds: Annotated[list[Path], typer.Argument(metavar="WORLD.yaml...", help="Worlds to run.")],
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            metavar="A,B,...",
            help="Who is compared, the reference first: systems such as infaas, selection "
            "policies, NAME=FILE.yaml with policies by seam, or all for every system.",
        ),
    ] = SHORT_LIST,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, max=1000, help="Run seeds 1 to N.")
    ] = 5,
    load: Annotated[
        str,
        typer.Option("--load", metavar="X,...", help="Repeat each world at these multiples."),
    ] = "1",
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="Write report.html and report.json there, keep finished runs, and go on from "
            "those that are there.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, max=1024, help="Runs at once; default: one a CPU."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare systems and policies on simulated worlds, paired by seed.

    All contenders meet the very same queries, faults and device noise. The table has means with
    95 % intervals, paired differences to the first contender, and shares of a clairvoyant bound
    that no policy can beat in expectation. A contender that fails is shown as failed and stops
    nobody else.
    """
    from modelless import __version__
    from modelless.controller.sim.compare.compare import compare as run
    from modelless.controller.sim.compare.compare import scenarios_of
    from modelless.controller.sim.compare.comparison import document_of
    from modelless.controller.sim.compare.contenders import contenders_of
    from modelless.controller.sim.worlds.world import load_world

    with others_print_to_stderr():
        contenders = contenders_of(names_of("policies", policies))
        scenarios = scenarios_of([load_world(path) for path in worlds], _loads_of(load))
    if report is not None:
        _check_folder(report)
    numbers = range(1, seeds + 1)
    with Steps("comparing, runs") as steps:
        finished = 0

        def progress(done: int, total: int, last: Run | None) -> None:
            nonlocal finished
            finished = done
            if last is None:
                if done:
                    steps.note(f"{done} of {total} runs were kept in {report}")
                return
            steps.at(done, total, f"{last.contender}, {last.scenario}, seed {last.seed}")

        try:
            with others_print_to_stderr():
                runs = run(
                    scenarios,
                    contenders,
                    numbers,
                    folder=report,
                    processes=processes or os.cpu_count() or 1,
                    home=home_of(ctx),
                    progress=progress,
                )
        except KeyboardInterrupt as stopped:
            for jobs in getattr(stopped, "__notes__", []):
                steps.note(f"under way were: {jobs}")
            if report is not None and finished:
                steps.note(f"{finished} runs are kept in {report}; the same command goes on there")
            raise
    document = {
        "modelless": __version__,
        **document_of(scenarios, contenders, numbers, runs),
    }
    if report is not None:
        _write(report, document)
    if as_json:
        emit(document)
    else:
        for scenario in document["scenarios"]:
            _show(scenario, seeds)
        if report is not None:
            say(f"report: {report / 'report.html'}")
    if not any(row["runs"] for each in document["scenarios"] for row in each["rows"]):
        raise typer.Exit(1)


def _check_folder(report: Path) -> None:
    """Check, before anything is run, that the report can be drawn and written."""
    from modelless.common.drawing import check_matplotlib

    check_matplotlib()
    try:
        report.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=report):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise EnvironmentUnfitError(
            f"--report {report}: allowed: a folder that can be written, or a new name: {why}"
        ) from None


def _loads_of(text: str) -> list[float]:
    """``0.5,1`` as numbers; InvalidInputError if it is no such list."""
    words = names_of("load", text)
    try:
        loads = [float(word) for word in words]
    except ValueError:
        loads = []
    if not loads or not all(0.0 < each <= 1e4 for each in loads):
        raise InvalidInputError.of("load", text, "numbers above 0 and up to 10000, with commas")
    return loads


def _write(report: Path, document: Mapping[str, Any]) -> None:
    from modelless.common.files import write_whole
    from modelless.controller.cli.compare_page import render_page

    text = json.dumps(document, indent=1, allow_nan=False)
    write_whole(report / "report.json", text.encode(), mode=0o644)
    write_whole(report / "report.html", render_page(document).encode(), mode=0o644)


def _show(scenario: Mapping[str, Any], seeds: int) -> None:
    """A scenario's table on stdout; failures and what policies did wrong on stderr."""
    from rich.text import Text

    from modelless.controller.cli.compare_figures import (
        COLUMNS,
        best_of,
        bound_words,
        cell_of,
        name_of,
        notes_of,
    )

    rows = scenario["rows"]
    best = best_of(rows)
    cells: list[list[str | Text]] = []
    for place, row in enumerate(rows):
        if row["runs"]:
            told = [
                Text(cell_of(column, row), style="bold" if place in best[column.key] else "")
                for column in COLUMNS
            ]
        else:
            told = [Text("failed", style="bold red"), *(Text("-") for _ in COLUMNS[1:])]
        cells.append([name_of(row), *told])
    show_table(
        ["contender", *(column.head for column in COLUMNS)],
        cells,
        title=f"{scenario['label']}, {seeds} seed{'' if seeds == 1 else 's'}",
        caption=bound_words(scenario),
        right=range(1, len(COLUMNS) + 1),
        whole=0,
    )
    for row in rows:
        if not row["runs"]:
            say(f"{row['contender']} failed: {row['error']}")
    for note in notes_of(scenario):
        say(f"note: {note}")
