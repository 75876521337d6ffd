"""``modelless costmodel``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from modelless.common.pages import count_of
from modelless.controller.cli.arguments import batches_of, counts_of
from modelless.controller.cli.screen import (
    Json,
    emit,
    mebibytes,
    number_text,
    say,
    show_progress,
    show_table,
)

if TYPE_CHECKING:
    from modelless.profiler.cost_model.evaluation.hold_out import MethodScore


_MOST_SHOTS = 100_000


class TablesAfterTrain(TyperCommand):
    """Takes every word from ``--train`` to the next option as a training table."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        is_training = False
        for word in args:
            if word.startswith("-"):
                is_training = word.split("=")[0] == "--train"
            elif is_training and spread[-1] != "--train":
                spread.append("--train")
            spread.append(word)
        return super().parse_args(ctx, spread)


def evaluate(
    tables: Annotated[list[Path], Argument(metavar="TABLE.csv...", help="Profiles to predict.")],
    train: Annotated[
        list[Path] | None,
        Option(
            metavar="TABLE.csv",
            help="Learn from this alone; then the tables are unseen but for the shots. Several may "
            "follow, up to the next option.",
        ),
    ] = None,
    holdout: Annotated[
        list[str] | None,
        Option(
            metavar="PART=VALUE",
            help="Leave this out of training and predict it: device=, family=, source=, model=, "
            "task=, engine= or precision=; repeatable. Default: each device in turn.",
        ),
    ] = None,
    shots: Annotated[
        str, Option(metavar="N,...", help="Measurements given of each device.")
    ] = "0,10,50",
    seeds: Annotated[int, Option(metavar="N", min=1, max=1000, help="Draws of the shots.")] = 3,
    draw: Annotated[
        str,
        Option(
            metavar="random|chosen",
            help="How shots are drawn: at random, or chosen one after the other by what each is "
            "expected to tell of all the rest, as `modelless profile --budget` chooses.",
        ),
    ] = "random",
    prior: Annotated[
        Path | None, Option(metavar="FILE", help="A prior of one's own; see the docs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict profiles from other profiles and a few measurements, and compare with baselines.

    Every method gets the same training rows and the same shots; shots are not judged. Repeated
    points of a table with other latencies are kept: the tables do not say what differed.

    Examples: modelless costmodel evaluate profiles.csv; modelless costmodel evaluate a.csv b.csv
    --holdout device=rtx4090 --shots 0,10 --json; modelless costmodel evaluate new.csv --train
    known.csv --seeds 5
    """
    allowed = f"whole numbers from 0 to {_MOST_SHOTS}, with commas between them"
    counts = counts_of("--shots", shots, 0, _MOST_SHOTS, allowed)
    from modelless.controller.usecases.measuring.cost_model import evaluate_cost_model

    with show_progress() as progress:
        scores, known_prior = evaluate_cost_model(
            tables, train=train, holdout=holdout or (), shots=counts, seeds=seeds, draw=draw,
            prior=prior, on_progress=progress,
        )  # fmt: skip
    if not as_json:
        _show(scores, draw)
        return
    emit(
        {
            "tables": [str(path) for path in tables],
            "train": [str(path) for path in train or ()],
            "holdout": list(holdout or ()),
            "shots": counts,
            "seeds": seeds,
            "draw": draw,
            "prior": known_prior,
            "results": [score.document() for score in scores],
        }
    )


def _show(scores: Sequence[MethodScore], draw: str) -> None:
    groups: dict[tuple[str, str, int], list[MethodScore]] = {}
    for score in scores:
        groups.setdefault((score.source, score.device, score.shots), []).append(score)
    for (source, device, shots), mine in groups.items():
        show_table(
            ["method", "MAPE", "median error", "within 10 %", "rank", "in the 90 % band"],
            [
                [
                    one.method,
                    f"{one.mape_percent:.1f} % ({one.mape_low_percent:.1f} to "
                    f"{one.mape_high_percent:.1f})",
                    f"{one.median_error_percent:.1f} %",
                    f"{one.within_10_percent:.0f} %",
                    number_text(one.rank_correlation, "{:.3f}"),
                    number_text(one.band_coverage_percent, "{:.0f} %"),
                ]
                for one in mine
            ],
            title=f"{device} ({source}), {shots} {draw} measurements given, "
            f"{mine[0].points} points predicted",
        )
    say("Errors are relative to what was measured; MAPE is their mean, over all draws.")


def import_(
    ctx: typer.Context,
    tables: Annotated[
        list[Path], Argument(metavar="TABLE.csv...", help="Profiles, as 'profile --csv' writes.")
    ],
    as_json: Json = False,
) -> None:
    """Add tables of profiles of other devices to what predictions learn from.

    A table replaces an older one of its file name; the same rows are stored once. A table with
    impossible values, unknown device kinds or another unit is refused, and nothing is stored.

    Example: modelless costmodel import profiles.csv
    """
    from modelless.controller.usecases.measuring.cost_model import import_profiles

    found = import_profiles(tables, home=ctx.obj)
    if as_json:
        emit({"tables": found})
        return
    for each in found:
        rows, devices = count_of(each["rows"], "row"), count_of(len(each["devices"]), "device")
        if each["is_new"]:
            typer.echo(f"imported {each['name']}: {rows} of {devices}")
        else:
            typer.echo(f"{each['name']} holds the same {rows} already")
        if each["repeated"]:
            say(f"note: {count_of(each['repeated'], 'row')} more repeat these exactly")
        if each["unpublished"]:
            shown = ", ".join(each["unpublished"])
            say(f"note: no published figures are known of {shown}: only these rows tell of them")


def list_(ctx: typer.Context, as_json: Json = False) -> None:
    """List the imported tables of profiles.

    Example: modelless costmodel list
    """
    from modelless.controller.usecases.measuring.cost_model import list_profile_tables

    tables = list_profile_tables(home=ctx.obj)
    if as_json:
        emit({"tables": tables})
        return
    if not tables:
        typer.echo("no tables are imported: predictions learn from this registry's machines alone")
        return
    show_table(
        ["table", "rows", "imported", "devices"],
        [
            (
                table["name"],
                f"{table['rows']:,}",
                table["added_at"].partition("T")[0],
                ", ".join(table["devices"]),
            )
            for table in tables
        ],
        right=[1],
    )


def remove(
    ctx: typer.Context,
    name: Annotated[str, Argument(metavar="TABLE", help="As 'modelless costmodel list' names it.")],
    as_json: Json = False,
) -> None:
    """Remove an imported table; predictions no longer learn from it.

    Example: modelless costmodel remove profiles.csv
    """
    from modelless.controller.usecases.measuring.cost_model import remove_profile_table

    removed = remove_profile_table(name, home=ctx.obj)
    if as_json:
        emit({"removed": removed})
    else:
        typer.echo(f"removed {removed['name']}: {count_of(removed['rows'], 'row')}")


def predict(
    ctx: typer.Context,
    model: Annotated[Path, Option(metavar="net.onnx", help="The model.")],
    device_class: Annotated[
        str,
        Option(
            metavar="DEVICE",
            help="A device class of this machine, a device of an imported table, or a published "
            "one such as 'NVIDIA L4'.",
        ),
    ],
    shots: Annotated[
        Path | None, Option(metavar="TABLE.csv", help="Some measurements of the device.")
    ] = None,
    batches: Annotated[str, Option(metavar="N,...", help="Batch sizes.")] = "1,2,4,8",
    as_json: Json = False,
) -> None:
    """Predict a model's latency by batch, memory and load time on a device; nothing is run.

    It learns from the imported tables, and from what this registry's machines measured.

    Example: modelless costmodel predict --model net.onnx --device-class cpu-1
    """
    counts = batches_of(batches)
    from modelless.controller.usecases.measuring.cost_model import predict_model

    found = predict_model(
        model, device_class=device_class, shots=shots, batches=counts, home=ctx.obj
    )
    if as_json:
        emit(found)
        return
    show_table(
        ["batch", "median ms", "80 % band ms", "memory MiB"],
        [
            (
                str(one["batch"]),
                f"{one['p50_ms']:.3g}",
                f"{one['low_ms']:.3g} to {one['high_ms']:.3g}",
                "unknown" if one["memory_bytes"] is None else mebibytes(one["memory_bytes"]),
            )
            for one in found["batches"]
        ],
        title=f"{found['model']} on {found['device']} ({found['device_kind']}), predicted",
        right=[0, 1, 2, 3],
    )
    load = (
        "unknown: nothing was measured" if found["load_s"] is None else f"{found['load_s']:.2g} s"
    )
    typer.echo(f"load time: {load}")
    typer.echo(f"measurements of {found['device']}: {found['shots']}")
    for one in found["devices"]:
        same = f", {count_of(one['same_items'], 'model')} the same" if one["same_items"] else ""
        typer.echo(
            f"learned from {one['name']} ({one['kind']}): {count_of(one['rows'], 'row')}{same}"
        )
    if not found["devices"]:
        say("note: nothing was measured on other devices: see 'modelless costmodel import'")
    if not found["is_published"]:
        say(f"note: no published figures are known of {found['device']}")
