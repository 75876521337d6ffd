"""``modelless promote``, ``rollback``, ``canary``, ``canary status``, ``remove`` and ``retire``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer import Argument, Option

from modelless.controller.cli.arguments import Url, seconds_of, share_of
from modelless.controller.cli.screen import (
    Json,
    duration,
    emit,
    mebibytes,
    say,
    show_progress,
    show_table,
)
from modelless.variants.registry.versions import Line, TrialRules

_RULES = TrialRules()

Version = Annotated[str, Argument(metavar="VARIANT@VERSION", help="task/model/variant@version.")]
Why = Annotated[str | None, Option("--reason", help="A sentence for the history.")]


def _tolerance(of: str, events: str) -> Any:
    """The option that says how many more bad events a canary may have."""
    return Option(
        f"--{of}-tolerance",
        help=f"How many percentage points more {events} than the current version are tolerated.",
    )


def _points(share: float) -> str:
    return f"{100 * share:g}%"


def promote(
    ctx: typer.Context, version: Version, reason: Why = None, as_json: Json = False
) -> None:
    """Make a version of a variant the current one, for all queries.

    A running cluster loads it within seconds and serves the current one until then. A canary of the
    version is over with this.

    Example: modelless promote imagenet/mynet/int8-224@2
    """
    from modelless.controller.usecases.registry.versions import promote as promote_version

    with show_progress() as progress:
        line = promote_version(version, reason=reason, home=ctx.obj, on_progress=progress)
    _show_current(line, as_json=as_json)


def rollback(
    ctx: typer.Context,
    variant: Annotated[str, Argument(metavar="VARIANT", help="task/model/variant.")],
    reason: Why = None,
    as_json: Json = False,
) -> None:
    """Undo the last change to a variant: its canary, or else its latest promotion.

    A running cluster sends the version no more queries within a fraction of a second; queries that
    run on it end there.

    Example: modelless rollback imagenet/mynet/int8-224
    """
    from modelless.controller.usecases.registry.versions import roll_back

    _show_current(roll_back(variant, reason=reason, home=ctx.obj), as_json=as_json)


def canary(
    ctx: typer.Context,
    version: Version,
    share: Annotated[
        str, Option(help="Share of the queries that either version could serve, e.g. 5%.")
    ] = "5%",
    against: Annotated[
        str | None, Option(metavar="@N", help="Version to compare with; default: the current one.")
    ] = None,
    alpha: Annotated[
        str, Option(help="Highest probability of each kind of wrong decision.")
    ] = _points(_RULES.alpha),
    accuracy_tolerance: Annotated[str, _tolerance("accuracy", "wrong answers")] = _points(
        _RULES.accuracy_tolerance
    ),
    error_tolerance: Annotated[str, _tolerance("error", "failed queries")] = _points(
        _RULES.error_tolerance
    ),
    latency_tolerance: Annotated[str, _tolerance("latency", "slow queries")] = _points(
        _RULES.latency_tolerance
    ),
    min_queries: Annotated[
        int, Option(help="Answered by it before it is promoted.")
    ] = _RULES.min_queries,
    min_labels: Annotated[
        int, Option(help="Items with feedback before it is promoted.")
    ] = _RULES.min_labels,
    max_queries: Annotated[
        int, Option(help="Undecided after so many, it is rolled back.")
    ] = _RULES.max_queries,
    at_most: Annotated[
        str, Option(metavar="TIME", help="Undecided after this time, it is rolled back.")
    ] = f"{_RULES.max_s / 3600:g}h",
    reason: Why = None,
    as_json: Json = False,
) -> None:
    """Try a version of a variant on a share of the queries.

    A sequential test promotes it or rolls it back, as soon as errors, feedback on its answers and
    latency decide. If they do not decide in time, it is rolled back. Each task has at most one
    canary at a time.

    Example: modelless canary imagenet/mynet/int8-224@2 --share 5%
    """
    from modelless.controller.usecases.registry.versions import begin_canary

    rules = TrialRules(
        alpha=share_of("--alpha", alpha),
        error_tolerance=share_of("--error-tolerance", error_tolerance),
        accuracy_tolerance=share_of("--accuracy-tolerance", accuracy_tolerance),
        latency_tolerance=share_of("--latency-tolerance", latency_tolerance),
        min_queries=min_queries,
        min_labels=min_labels,
        max_queries=max_queries,
        max_s=seconds_of("--at-most", at_most),
    )
    with show_progress() as progress:
        trial = begin_canary(
            version, share=share_of("--share", share), rules=rules, against=against, reason=reason,
            home=ctx.obj, on_progress=progress,
        )  # fmt: skip
    if as_json:
        emit({"variant": trial.variant_id, "against": trial.against_id, "share": trial.share})
        return
    typer.echo(
        f"{trial.variant_id} serves {100 * trial.share:.3g} % of the queries of {trial.against_id}"
    )
    say(f"next: modelless canary status; to end it now: modelless rollback {trial.name}")


def canary_status(ctx: typer.Context, url: Url = None, as_json: Json = False) -> None:
    """Show the evidence of canaries so far.

    Reads the running cluster, or the store while nothing is up.

    Example: modelless canary status
    """
    from modelless.controller.usecases.registry.versions import list_canaries

    with show_progress() as progress:
        trials = list_canaries(url=url, home=ctx.obj, on_progress=progress)
    if as_json:
        emit({"trials": trials})
        return
    if not trials:
        typer.echo("no canary is on")
    for trial in trials:
        _show_trial(trial)


def _show_trial(trial: Mapping[str, Any]) -> None:
    queries = trial["queries"]
    show_table(
        ["guard", "canary", "of", "current", "of", "tolerance", "worse", "not worse"],
        [
            (
                guard["guard"],
                str(guard["tried"]["bad"]),
                str(guard["tried"]["count"]),
                str(guard["standing"]["bad"]),
                str(guard["standing"]["count"]),
                f"{guard['tolerance_percent']:g}",
                f"{guard['worse_percent']:.0f} %",
                f"{guard['fine_percent']:.0f} %",
            )
            for guard in trial["guards"]
        ],
        title=f"{trial['variant']} against {trial['against']}, {100 * trial['share']:.3g} % of "
        f"the queries, for {duration(trial['age_s'])}: {queries['tried']} queries on its share, "
        f"and {queries['standing']} on the rest",
        caption=f"{trial['reason']}; worse and not worse: evidence, of what is needed",
        right=range(1, 8),
    )


def _show_current(line: Line, *, as_json: bool) -> None:
    before = line.earlier[-1] if line.earlier else None
    if as_json:
        emit({"variant": line.name, "current": line.current, "before": before})
        return
    known = f"; before it was {before}" if before is not None else ""
    typer.echo(f"{line.name}: version {line.current} is current{known}")


def remove(
    ctx: typer.Context,
    name: Annotated[
        str, Argument(metavar="NAME", help="task, task/model, task/model/variant, or with @version")
    ],
    reason: Why = None,
    as_json: Json = False,
) -> None:
    """Remove a task, a model, a variant or one version, with its profiles and files.

    Files that another variant has, or was made of, stay. The history stays, too, and a version that
    was removed is never given again. Versions in use are refused: those that are loaded, on
    trial, or current while there are others. What a running modelless serves is retired first.

    Examples: modelless remove imagenet/mynet/int8-224@2; modelless remove imagenet/mynet
    """
    from modelless.controller.usecases.registry.versions import remove as remove_name

    found = remove_name(name, reason=reason, home=ctx.obj)
    if as_json:
        emit(
            {
                "removed": found.name, "variants": list(found.variants), "files": found.files,
                "bytes": found.file_bytes,
            }
        )  # fmt: skip
        return
    for variant in found.variants:
        typer.echo(f"removed {variant}")
    if found.name not in found.variants:
        typer.echo(f"removed {found.name}")
    say(f"{found.files} files collected, {mebibytes(found.file_bytes)} MiB")


def retire(
    ctx: typer.Context,
    name: Annotated[str, Argument(metavar="NAME", help="task, task/model or task/model/variant")],
    undo: Annotated[bool, Option("--undo", help="Take them back into service.")] = False,
    reason: Why = None,
    as_json: Json = False,
) -> None:
    """Take variants out of service; they stay registered, with their profiles and files.

    A running modelless lets in no new queries for them within a second, answers those that it has,
    and then unloads them.

    Examples: modelless retire imagenet/mynet; modelless retire imagenet/mynet --undo
    """
    from modelless.controller.usecases.registry.versions import retire as retire_name

    found = retire_name(name, undo=undo, reason=reason, home=ctx.obj)
    if as_json:
        emit({"undone" if undo else "retired": list(found)})
        return
    for each in found:
        typer.echo(f"{each}: {'in service again' if undo else 'out of service'}")
