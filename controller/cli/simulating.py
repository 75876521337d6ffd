"""``modelless simulate``, ``compare`` and ``replay``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from modelless.common.errors import InvalidInputError, ModellessError
from modelless.controller.cli.arguments import names_of
from modelless.controller.cli.screen import (
    Json,
    emit,
    number_text,
    others_print_to_stderr,
    say,
    show_progress,
    show_table,
)

if TYPE_CHECKING:
    from modelless.controller.replay.replay import Replayed


SHORT_LIST = "modelless,infaas,proteus,ray-serve,cheapest-feasible,most-accurate-feasible"


_CAUSES, _WORST_WORLDS = 10, 10
"""Rows of the tables about random worlds; the report has all."""

_WHO = ("in_charge", "found")


class ReplayDiffersError(ModellessError):
    """The replayed effects differ from the recorded ones."""


def simulate(
    ctx: typer.Context,
    world: Annotated[Path, Argument(metavar="WORLD.yaml", help="The world to run.")],
    seed: Annotated[
        int | None, Option(min=0, help="Of everything random; default: the world's.")
    ] = None,
    log: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="One row a query into FILE.parquet or FILE.csv, one row a control decision "
            "into FILE.control.parquet or .csv in the same folder.",
        ),
    ] = None,
    receipts: Annotated[
        Path | None,
        Option(metavar="FILE", help="The receipts of all queries into FILE.parquet, at the end."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate a world with the dispatcher, planner and policies that serve, on a virtual clock.

    A world names devices, tasks, queries, network delays, faults and policies. Latencies are drawn
    from profiles. The same seed gives the same run. Interrupted or failed, the log keeps what
    happened so far.

    Examples: modelless simulate benchmarks/worlds/steady.yaml; modelless simulate world.yaml
    --seed 3 --log run.parquet --json
    """
    from modelless.controller.usecases.simulation.simulating import simulate as run

    with show_progress() as progress, others_print_to_stderr():
        figures = run(
            world, seed=seed, log=log, receipts=receipts, home=ctx.obj, on_progress=progress
        )
    if as_json:
        emit(figures)
        return
    _show_figures(figures)
    if not figures["queries"]:
        say(f"note: no query came within {figures['span_s']:g} s: see 'queries' in {world}")
    for problem, count in figures["policy_problems"].items():
        say(f"note: {problem} ({count} times)")
    if log is not None:
        say(f"log: {log}")


def compare(
    ctx: typer.Context,
    worlds: Annotated[
        list[Path] | None, Argument(metavar="WORLD.yaml...", help="Worlds to run.")
    ] = None,
    random: Annotated[
        int,
        Option(
            metavar="N",
            min=0,
            max=100_000,
            help="Draw N random worlds instead, and show how much the first contender loses in "
            "each against the best other.",
        ),
    ] = 0,
    seed: Annotated[int, Option(min=0, help="Of the random worlds.")] = 1,
    which: Annotated[
        Literal["develop", "judge"],
        Option("--set", help="Random worlds to develop policies on, or to judge them by."),
    ] = "develop",
    queries: Annotated[
        int, Option(metavar="N", min=100, max=10_000_000, help="In each random world, roughly.")
    ] = 10_000,
    traces: Annotated[
        str | None,
        Option(
            metavar="A.csv,B.csv",
            help="Recorded arrivals, arrival_s a row; some random worlds have pieces of them.",
        ),
    ] = None,
    keep_worlds: Annotated[
        Path | None,
        Option(metavar="DIR", help="Write each random world there, for modelless simulate."),
    ] = None,
    policies: Annotated[
        str,
        Option(
            metavar="A,B,...",
            help="Contenders, the reference first: systems such as infaas, selection "
            "policies, NAME=FILE.yaml with policies by seam, or all for every system.",
        ),
    ] = SHORT_LIST,
    seeds: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            max=1000,
            help="Run seeds 1 to N; default: 5, with random worlds 1 of each one's own.",
        ),
    ] = None,
    load: Annotated[
        str, Option(metavar="X,...", help="Repeat each world at these multiples.")
    ] = "1",
    bound: Annotated[
        bool | None,
        Option(help="Compute what no policy can beat; default: not with random worlds."),
    ] = None,
    report: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="Write report.html and report.json there, keep finished runs, and go on from "
            "those that are there.",
        ),
    ] = None,
    processes: Annotated[
        int | None, Option(min=1, max=1024, help="Runs at once; default: one a CPU.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare systems and policies on simulated worlds, paired by seed.

    All contenders meet the very same queries, faults and device noise. The table has means with 95
    % intervals, paired differences to the first contender, and shares of a clairvoyant bound that
    no policy can beat in expectation. A contender that fails is shown as failed and does not stop
    the others.

    With --random, the worlds are drawn from stated distributions, each with a seed of its own. The
    tables show the distribution of the first contender's margin over the best other in each world,
    which of the drawn features it depends on, and the worst worlds.

    Examples: modelless compare benchmarks/worlds/steady.yaml; modelless compare world.yaml
    --policies modelless,infaas,mine=suite.yaml --seeds 10 --load 0.5,1,1.5 --report comparison;
    modelless compare --random 30 --policies all --report regret --keep-worlds worlds; modelless
    compare --random 300 --set judge --seed 7 --policies modelless,superserve,clockwork
    """
    contenders, loads = names_of("policies", policies), _loads_of(load)
    from modelless.controller.usecases.simulation.comparison_figures import scaling_text
    from modelless.controller.usecases.simulation.simulating import compare as run

    with show_progress() as progress, others_print_to_stderr():
        found = run(
            *worlds or (), random=random, random_seed=seed, random_set=which,
            queries=queries, traces=names_of("traces", traces) if traces else (),
            keep_worlds=keep_worlds, policies=contenders, seeds=seeds,
            loads=loads, bound=bound, report=report,
            processes=processes or os.cpu_count() or 1, home=ctx.obj, on_progress=progress,
        )  # fmt: skip
    if as_json:
        emit(found.document)
    else:
        if found.regret is not None:
            _show_regret(found.regret)
        else:
            for scenario in found.scenarios:
                _show_scenario(scenario, len(found.document["seeds"]))
        if difference := scaling_text(found.document["contenders"]):
            say(f"note: {difference}")
        if report is not None:
            say(f"report: {report / 'report.html'}")
    if not any(row["runs"] for each in found.scenarios for row in each["rows"]):
        raise typer.Exit(1)


def tune(
    ctx: typer.Context,
    recording: Annotated[
        Path, Option(metavar="DIR", help="What 'up --record' wrote, or a world file.")
    ],
    objective: Annotated[
        str, Option(help="cost, rent, energy, p99, attainment, accuracy or value.")
    ] = "cost",
    subject_to: Annotated[
        list[str] | None,
        Option(
            "--subject-to",
            metavar="BOUND",
            help="What must hold; may be repeated; default: attainment>=0.99.",
        ),
    ] = None,
    trials: Annotated[int, Option(min=2, max=100_000, help="Settings to try.")] = 60,
    seeds: Annotated[int, Option(min=1, max=100, help="Runs of each.")] = 3,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write what is proposed there.")
    ] = None,
    processes: Annotated[int, Option(min=1, max=1024, help="Runs at once.")] = 1,
    as_json: Json = False,
) -> None:
    """Search settings of the policies in charge that do better on recorded traffic.

    The first half of the recording is searched in the simulator, and the second judges what was
    found beside the settings in charge. It proposes a settings file and applies nothing.

    Examples: modelless up --record run-1; modelless tune --recording run-1 --objective cost
    --subject-to "attainment>=0.99" --subject-to "accuracy>=75" --output tuned.yaml
    """
    from modelless.controller.usecases.simulation.tuning import FIGURES
    from modelless.controller.usecases.simulation.tuning import tune as run

    with show_progress() as progress, others_print_to_stderr():
        found = run(
            recording, objective=objective, subject_to=subject_to or ("attainment>=0.99",),
            trials=trials, seeds=seeds, output=output, processes=processes, home=ctx.obj,
            on_progress=progress,
        )  # fmt: skip
    if as_json:
        emit(found)
        return
    show_table(
        ["", "unit", "in charge", "found"],
        [
            (name, figure.unit, *(f"{found[who]['judged'][name]:.4g}" for who in _WHO))
            for name, figure in FIGURES.items()
        ],
        title=f"On the half that was kept back, {found['trials']} trials",
        right=[2, 3],
    )
    typer.echo(found["verdict"])
    if output is not None:
        is_written = found["proposed"] is not None
        say(f"settings: {output}" if is_written else f"{output} is not written")


def replay(
    folder: Annotated[Path, Argument(metavar="DIR", help="What 'up --record' wrote.")],
    as_world: Annotated[
        Path | None,
        Option(
            metavar="WORLD.yaml",
            help="Do not replay: write the recorded arrivals, devices and profiles as a world.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Feed a recording's inputs to the same policies, and compare every effect.

    Exit code 0 if all are what they were, 1 with the first difference if not.

    Examples: modelless up --record run-1; modelless replay run-1; modelless replay run-1
    --as-world world.yaml && modelless simulate world.yaml
    """
    from modelless.controller.usecases.simulation.simulating import replay as replay_tapes
    from modelless.controller.usecases.simulation.simulating import world_of_recording

    if as_world is not None:
        with others_print_to_stderr():
            told = world_of_recording(folder, as_world)
        if as_json:
            emit(told)
        else:
            typer.echo(
                f"{told['queries']} queries in {told['span_s']:.1f} s: {as_world}, {told['trace']}"
            )
            for key, why in (
                ("too_large", "more items than max_batch"),
                ("unmeasured", "of tasks without a profile"),
            ):
                if told[key]:
                    say(f"note: {told[key]} queries are left out: {why}")
        return
    with others_print_to_stderr():
        found = replay_tapes(folder)
    different = [one for one in found if one.difference is not None]
    if as_json:
        emit({"identical": not different, "tapes": [_document(one) for one in found]})
    else:
        _show_tapes(found)
    if different and as_json:  # the document has said it
        raise typer.Exit(ReplayDiffersError.exit_code)
    if different:
        raise ReplayDiffersError(
            f"{len(different)} of {len(found)} tapes differ: another version, another policy or "
            "another machine's arithmetic; if none of these, it is a bug"
        )


def _loads_of(text: str) -> list[float]:
    """``0.5,1`` as numbers; InvalidInputError if it is no such list."""
    try:
        loads = [float(word) for word in names_of("load", text)]
    except ValueError:
        loads = [0.0]
    if not all(0.0 < each <= 1e4 for each in loads):
        raise InvalidInputError.of("load", text, "numbers above 0 and up to 10000, with commas")
    return loads


def _show_figures(figures: Mapping[str, Any]) -> None:
    rows = [(name, tally) for name, tally in figures["tasks"].items()]
    rows += [(f"tenant {name}", tally) for name, tally in figures["tenants"].items()]
    shown = rows if len(rows) <= 20 else sorted(rows, key=lambda row: -row[1]["violated"])[:20]
    from modelless.controller.usecases.simulation.comparison_figures import plans_text

    left_out, latency = len(rows) - len(shown), figures["latency_ms"]
    busy = ", ".join(f"{name} {share:.0%}" for name, share in figures["utilisation"].items())
    remarks = (
        f"{left_out} rows without most violations are left out" if left_out else "",
        "latency ms: "
        + ", ".join(f"{p} {number_text(latency[p], '{:.4g}')}" for p in ("p50", "p90", "p99")),
        f"busy: {busy}",
        f"loads {figures['loads']}, evictions {figures['evictions']}, "
        f"cold-start seconds {figures['cold_start_s']:.1f}",
        f"rent {figures['rent_usd']:.4g} USD",
        plans_text(figures["plans"]),
    )
    show_table(
        ["", "queries", "attained", "goodput/s", "accuracy", "USD a million", "violations"],
        [_row(name, tally) for name, tally in [("all", figures), *shown]],
        title=f"{figures['world']}, seed {figures['seed']}: {figures['span_s']:g} s of arrivals",
        caption="; ".join(filter(None, remarks)),
        right=range(1, 6),
    )


def _row(name: str, tally: Mapping[str, Any]) -> list[str]:
    attainment, queries = tally["attainment"], tally["queries"]
    return [
        name,
        str(queries),
        number_text(attainment, "{:.2%}"),
        number_text(tally["goodput_per_s"], "{:.4g}"),
        number_text(tally["mean_accuracy"], "{:.4g}"),
        number_text(tally["cost_usd"] / queries * 1e6 if queries else None, "{:.4g}"),
        ", ".join(f"{kind} {count}" for kind, count in tally["violations"].items()),
    ]


def _show_scenario(scenario: Mapping[str, Any], seeds: int) -> None:
    """A scenario's table on stdout; failures and what policies did wrong on stderr."""
    from rich.text import Text

    from modelless.controller.usecases.simulation.comparison_figures import (
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
        told = [Text("failed", style="bold red"), *(Text("-") for _ in COLUMNS[1:])]
        if row["runs"]:
            told = [
                Text(cell_of(column, row), style="bold" if place in best[column.key] else "")
                for column in COLUMNS
            ]
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


def _show_regret(regret: Mapping[str, Any]) -> None:
    """The first contender's margins, everybody's means, the clearest causes, the worst worlds."""
    from modelless.controller.usecases.simulation.comparison_figures import (
        cause_table,
        contender_table,
        summary_rows,
        world_table,
    )

    first = regret["first"]
    title = f"Margin of {first} over the best other in each world, points of value per query"
    show_table(["", ""], summary_rows(regret), title=title, right=[1])
    for title, (heads, rows), most, right in (
        ("Means over the worlds", contender_table(regret), None, range(1, 7)),
        ("Mean margin by what was drawn", cause_table(regret), _CAUSES, range(1, 5)),
        ("The worst worlds", world_table(regret), _WORST_WORLDS, (1, 2, 4)),
    ):
        show_table(heads, rows[:most], title=title, right=right, whole=0)
    for label in regret["failed"]:
        say(f"note: {label}: no margin, because runs failed")


def _document(one: Replayed) -> dict[str, object]:
    difference = one.difference
    return {
        "tape": str(one.tape), "core": one.what, "name": one.name, "inputs": one.inputs,
        "effects": one.effects, "ending": one.ending,
        "difference": difference and {
            "input": difference.number, "asked": difference.asked,
            "recorded": difference.recorded, "replayed": difference.replayed,
        },
    }  # fmt: skip


def _show_tapes(found: Sequence[Replayed]) -> None:
    show_table(
        ["core", "name", "inputs", "effects", "result"],
        [
            (
                one.what,
                one.name,
                str(one.inputs),
                str(one.effects),
                "identical" if one.difference is None else f"differs at {one.difference.number}",
            )
            for one in found
        ],
        right=[2, 3],
        whole=1,
    )
    for one in found:
        if one.difference is not None:
            typer.echo(f"{one.tape}, input {one.difference.number}: {one.difference.asked:.2000}")
            typer.echo(f"  recorded: {one.difference.recorded:.2000}")
            typer.echo(f"  replayed: {one.difference.replayed:.2000}")
        elif one.ending == "unfinished":
            say(f"note: {one.tape} breaks off after {one.inputs} inputs: its process was ended")
        elif one.ending != "end":
            say(f"note: {one.tape} was cut after {one.inputs} inputs: {one.ending}")
