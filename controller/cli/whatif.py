"""``modelless whatif``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.arguments import seconds_of
from modelless.controller.cli.screen import Json, emit, say, show_progress, show_table

if TYPE_CHECKING:
    from modelless.controller.config import PolicySpecification
    from modelless.controller.usecases.whatif import Figure, WhatIf


def whatif(
    ctx: typer.Context,
    policy: Annotated[
        list[str],
        Option(help="Selection policy, or '{policy: NAME, SETTING: ...}'; repeatable."),
    ],
    receipts: Annotated[
        Path | None,
        Option(metavar="FILE", help="A FILE.parquet of receipts; default: this machine's."),
    ] = None,
    world: Annotated[
        Path | None,
        Option(
            metavar="WORLD.yaml",
            help="The system that served: simulate what the policy would change for others, too.",
        ),
    ] = None,
    runs: Annotated[
        int, Option(min=2, max=1000, help="Simulated runs of the world, of each policy.")
    ] = 5,
    since: Annotated[
        str, Option(metavar="TIME", help="Of this machine's, how far back: 90s, 10m, 2h.")
    ] = "1h",
    as_json: Json = False,
) -> None:
    """Estimate from receipts how another selection policy would have done.

    The receipts must be of a time with exploration: see policies.explore in the settings. They
    tell how each query would have done if the other policy had chosen for it alone. With --world,
    the simulator adds what such a choice for every query does to the others; 'modelless replay
    --as-world' writes the world of a recording.

    Examples: modelless whatif --policy cheapest-feasible --since 2h; modelless whatif --policy
    infaas --policy clipper --receipts day.parquet --world again.yaml --json
    """
    from modelless.controller.usecases.whatif import whatif as estimate

    begin = datetime.now(UTC) - timedelta(seconds=seconds_of("since", since))
    with show_progress() as progress:
        found = estimate(
            *map(_specification, policy), receipts=receipts, world=world, runs=runs, since=begin,
            home=ctx.obj, on_progress=progress,
        )  # fmt: skip
    if as_json:
        emit({"policies": [each.document() for each in found]})
        return
    for each in found:
        _show(each)
    if world is None:
        say(
            "note: as if the policy had chosen for one query alone, and all else had been as it "
            "was; --world adds what its choices do to each other"
        )


def _specification(text: str) -> PolicySpecification:
    """A name, or a mapping in YAML."""
    if not text.lstrip().startswith("{"):
        return text
    import yaml

    try:
        found: dict[str, object] = yaml.safe_load(text)
    except yaml.YAMLError:
        allowed = "a name, or '{policy: NAME, SETTING: VALUE}'"
        raise InvalidInputError.of("policy", text, allowed) from None
    return found


def _show(found: WhatIf) -> None:
    kinds = {
        "propensity": found.propensity,
        "doubly robust": found.doubly_robust,
        **({} if found.in_full is None else {"in full": found.in_full}),
    }
    rows = []
    for name, was in found.observed.items():
        scale = 1e6 if name == "cost_usd" else 1.0
        label = "cost, micro-USD" if name == "cost_usd" else name
        cells = [_cell(figures[name], scale) for figures in kinds.values()]
        rows.append((label, f"{was * scale:.4g}", *cells))
    deferred = f"; {found.defers:.0%} deferred" if found.defers else ""
    show_table(
        ["per query", "as it was", *kinds],
        rows,
        title=f"{found.policy}: {found.matches} of {found.queries} choices as in the receipts, of "
        f"which {found.explored} were drawn{deferred}",
        right=range(1, len(kinds) + 2),
        whole=0,
    )


def _cell(figure: Figure, scale: float) -> str:
    value, low, high = (
        "-" if each is None else f"{each * scale:.4g}"
        for each in (figure.value, figure.low, figure.high)
    )
    return f"{value} ({low} to {high})"
