"""``modelless simulate``: try a setting or a policy on a world before it goes live."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.cli.compare_figures import plans_text
from modelless.controller.cli.screen import (
    Json,
    Steps,
    emit,
    home_of,
    others_print_to_stderr,
    say,
    show_table,
)

EPILOG = (
    "Examples: modelless simulate benchmarks/worlds/steady.yaml; "
    "modelless simulate world.yaml --seed 3 --log run.parquet --json"
)


def simulate(
    ctx: typer.Context,
    world: Annotated[Path, typer.Argument(metavar="WORLD.yaml", help="The world to run.")],
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Of everything random; default: the world's."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="One row a query into FILE.parquet or FILE.csv, one row a control decision "
            "into FILE.control.parquet or .csv in the same folder.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate a world with the dispatcher, planner and policies that serve, on a virtual clock.

    A world names devices, tasks, queries, network delays, faults and policies. Latencies are drawn
    from profiles. The same seed gives the same run. Interrupted or failed, the log keeps what
    happened so far.
    """
    from modelless.controller.sim.log import log_kind
    from modelless.controller.sim.run import simulate as run
    from modelless.controller.sim.summary import Summary
    from modelless.controller.sim.worlds.world import load_world

    with others_print_to_stderr():
        file = load_world(world)
    if log is not None:
        log_kind(log)
    counted = Summary(file.world.seed if seed is None else seed, file.world.name)
    with Steps("simulating, seconds") as steps:

        def progress(now_s: float, queries: int) -> None:
            passed = math.floor(now_s)
            total = math.ceil(file.world.duration_s or passed + 1)
            steps.at(min(passed, total), total, f"{queries} queries")

        try:
            with others_print_to_stderr():
                run(
                    file,
                    seed=seed,
                    log=log,
                    home=home_of(ctx),
                    progress=progress,
                    summary=counted,
                )
        except BaseException as error:
            if counted.total.queries:
                is_kept = log is not None and not isinstance(error, EnvironmentUnfitError)
                kept = f"; {log} holds them" if is_kept else ""
                steps.note(f"stopped after {counted.total.queries} queries{kept}")
            raise
    figures = counted.figures()
    if as_json:
        emit({**figures, "log": str(log) if log is not None else None})
        return
    _show(figures)
    if not counted.total.queries:
        say(f"note: no query came within {counted.span_s:g} s: see 'queries' in {world}")
    for problem, count in figures["policy_problems"].items():
        say(f"note: {problem} ({count} times)")
    if log is not None:
        say(f"log: {log}")


def _show(figures: Mapping[str, Any]) -> None:
    rows = [(name, tally) for name, tally in figures["tasks"].items()]
    rows += [(f"tenant {name}", tally) for name, tally in figures["tenants"].items()]
    shown = rows if len(rows) <= 20 else sorted(rows, key=lambda row: -row[1]["violated"])[:20]
    latency, used = figures["latency_ms"], figures["utilisation"]
    show_table(
        ["", "queries", "attained", "goodput/s", "accuracy", "USD a million", "violations"],
        [_row(name, tally) for name, tally in [("all", figures), *shown]],
        title=f"{figures['world']}, seed {figures['seed']}: {figures['span_s']:g} s of arrivals",
        caption="; ".join(
            part
            for part in (
                f"{len(rows) - len(shown)} rows without most violations are left out"
                if len(shown) < len(rows)
                else "",
                f"latency ms: p50 {_number(latency['p50'])}, p90 {_number(latency['p90'])}, "
                f"p99 {_number(latency['p99'])}",
                "busy: " + ", ".join(f"{name} {share:.0%}" for name, share in used.items()),
                f"loads {figures['loads']}, evictions {figures['evictions']}, "
                f"cold-start seconds {figures['cold_start_s']:.1f}",
                f"rent {figures['rent_usd']:.4g} USD",
                plans_text(figures["plans"]),
            )
            if part
        ),
        right=range(1, 6),
    )


def _row(name: str, tally: Mapping[str, Any]) -> list[str]:
    attainment, queries = tally["attainment"], tally["queries"]
    return [
        name,
        str(queries),
        "-" if attainment is None else f"{attainment:.2%}",
        _number(tally["goodput_per_s"]),
        _number(tally["mean_accuracy"]),
        _number(tally["cost_usd"] / queries * 1e6 if queries else None),
        ", ".join(f"{kind} {count}" for kind, count in tally["violations"].items()),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
