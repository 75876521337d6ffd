"""``modelless zoo``, ``register`` and ``variants``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from modelless.common.errors import InvalidInputError
from modelless.controller.cli.arguments import ConfigFile, Framework, Scopes, TaskFile
from modelless.controller.cli.making import make
from modelless.controller.cli.screen import (
    Json,
    accuracy_text,
    emit,
    feedback_text,
    mebibytes,
    say,
    show_progress,
    show_table,
)
from modelless.variants.registry.versions import name_of
from modelless.variants.vocabulary import Precision, Provenance


def zoo_list(ctx: typer.Context, as_json: Json = False) -> None:
    """List the zoo's entries, and which of them are added.

    Example: modelless zoo list --json
    """
    from modelless.controller.usecases.registry.zoo import list_zoo

    rows = list_zoo(ctx.obj)
    if as_json:
        emit({"entries": rows})
        return
    show_table(
        ["name", "added", "variants registered", "what it is"],
        [
            (
                row["name"],
                "yes" if row["added"] else "no",
                str(row["registered"]),
                row["summary"] or f"not installed: {row['missing']}",
            )
            for row in rows
        ],
        caption="modelless zoo add NAME adds one",
        right=[2],
    )


def zoo_add(
    ctx: typer.Context,
    names: Annotated[list[str], Argument(metavar="NAME", help="Entries of 'zoo list'.")],
    force: Annotated[
        bool, Option("--force", help="Build again, even if all of it is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build and register all variants of zoo entries.

    Complete entries are left alone; damaged files are made again.

    Example: modelless zoo add imagenet fashion-mnist
    """
    from modelless.controller.usecases.registry import zoo

    with show_progress() as progress:
        added = zoo.zoo_add(*names, force=force, home=ctx.obj, on_progress=progress)
    for entry in added:
        size = mebibytes(sum(variant.artifact_bytes for variant in entry.variants))
        how = "already there" if entry.was_there else f"{len(entry.new)} of them new"
        say(f"{entry.name}: {len(entry.variants)} variants, {size} MiB, {how}")
    if as_json:
        emit({"entries": [entry.document() for entry in added]})
    else:
        say(f"next: modelless profile {' '.join(entry.name for entry in added)}")


def register(
    ctx: typer.Context,
    file: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="The ONNX file; or a .pt2 or .skops file or package.module:attribute to convert.",
        ),
    ],
    model: Annotated[str, Option(help="Model it is a form of; made if new.")],
    name: Annotated[
        str | None,
        Option(help="Name of the one variant, e.g. int8-224; without it a family is made."),
    ] = None,
    precision: Annotated[Precision | None, Option(help="Its number format.")] = None,
    task: Annotated[str | None, Option("--task", "-t", help="Task it performs.")] = None,
    task_file: TaskFile = None,
    engine: Annotated[
        str | None,
        Option(
            metavar="ENGINE",
            help="What runs it; default: onnxruntime-cpu. See 'modelless engines'.",
        ),
    ] = None,
    resolution: Annotated[
        int | None, Option(metavar="PX", help="Side of the network's input.")
    ] = None,
    accuracy: Annotated[float | None, Option(help="Per cent, in the task's metric.")] = None,
    accuracy_source: Annotated[
        str | None, Option(help="Validation set, page, or how it was derived.")
    ] = None,
    accuracy_samples: Annotated[
        int | None, Option(help="Items it was measured on; they give its interval.")
    ] = None,
    validation: Annotated[
        Path | None, Option(metavar="PATH", help="Measure the accuracy on this set instead.")
    ] = None,
    provenance: Annotated[Provenance | None, Option(help="How the accuracy is known.")] = None,
    revise: Annotated[
        str | None,
        Option(
            "--revise-accuracy",
            metavar="REASON",
            help="Replace the accuracy that these very bytes are registered with.",
        ),
    ] = None,
    framework: Framework = None,
    family: Annotated[str, Option(help="A new model's architecture.")] = "",
    source: Annotated[str, Option(help="Where a new model comes from.")] = "",
    licence: Annotated[str, Option(help="A new model's licence.")] = "",
    as_json: Json = False,
) -> None:
    """Register a trained model: one variant of it, or with no --name the whole family.

    Without --name every variant is made, as by 'modelless make', and measured on --validation. The
    file is inspected and held against the task's inputs and outputs before anything is stored.
    Another framework's model is converted and held against itself on the validation set's inputs.
    The same bytes for the same engine again get the version they have; other bytes, or another
    engine, under the same name the next one. To keep several engines side by side, name each
    variant.

    Examples: modelless register net.onnx --task imagenet --model mynet --validation photos;
    modelless register net.onnx --task imagenet --model mynet --name fp32-224 --precision fp32
    --resolution 224 --accuracy 75.1 --provenance published --accuracy-source "the paper, table 2"
    """
    if name is None:
        of_one = {
            "--accuracy": accuracy, "--accuracy-source": accuracy_source,
            "--accuracy-samples": accuracy_samples, "--provenance": provenance,
            "--revise-accuracy": revise, "--family": family, "--source": source,
            "--licence": licence,
        }  # fmt: skip
        if validation is None:
            raise InvalidInputError(
                "--name: say what the variant is called; or give --validation, and a whole family "
                "is made and measured on it"
            )
        if given := [option for option, value in of_one.items() if value]:
            raise InvalidInputError(
                f"{', '.join(given)}: goes with --name, for one variant; without it a family is "
                "made, and its accuracies are measured"
            )
        make(
            ctx, file, validation, task, task_file, None, model, framework,
            precision or Precision.FP32, resolution, engine=engine,
            as_json=as_json,
        )  # fmt: skip
        return
    if precision is None:
        raise InvalidInputError.of(
            "--precision", None, ", ".join(Precision), "It goes with --name."
        )
    from modelless.controller.usecases.home import variant_fields
    from modelless.controller.usecases.registry.registering import register as register_variant

    with show_progress() as progress:
        variant = register_variant(
            file, model=model, name=name, precision=precision, task=task, task_file=task_file,
            engine=engine or "onnxruntime-cpu", resolution_px=resolution,
            accuracy_percent=accuracy, provenance=provenance, accuracy_source=accuracy_source,
            accuracy_samples=accuracy_samples, validation=validation, revise=revise,
            framework=framework, family=family, model_source=source, licence=licence,
            home=ctx.obj, on_progress=progress,
        )  # fmt: skip
    if as_json:
        emit(variant_fields(variant))
        return
    typer.echo(
        f"registered {variant.id}: {variant.artifact_bytes} bytes, "
        f"sha256 {variant.artifact_sha256[:12]}, accuracy {accuracy_text(variant.accuracy)}"
    )
    say(f"next: modelless profile {variant.id if variant.version > 1 else name_of(variant.id)}")


def variants(
    ctx: typer.Context,
    scopes: Scopes = None,
    all_versions: Annotated[
        bool, Option("--all-versions", help="Every version, and what was retired.")
    ] = False,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List the registered variants, and which variant dominates each on this machine.

    Dominated variants are not served, unless the settings say serve_dominated: true.

    Example: modelless variants imagenet
    """
    from modelless.controller.usecases.registry.registering import list_variants, remarks_on_sets

    found = list_variants(
        *(scopes or ()), all_versions=all_versions, config=config, home=ctx.obj
    )  # fmt: skip
    if as_json:
        emit({"variants": [row.document() for row in found]})
        return
    has_feedback = any(row.feedback for row in found)
    show_table(
        [
            *("variant", *(["state"] * all_versions), "accuracy"),
            *(["by feedback"] * has_feedback),
            *("precision", "MiB"),
            *("profiled on", "dominated by", "served"),
        ],
        [
            (
                row.variant.id,
                *([row.state] * all_versions),
                accuracy_text(row.variant.accuracy),
                *([feedback_text(row.feedback)] * has_feedback),
                row.variant.precision.value,
                mebibytes(row.variant.artifact_bytes),
                ", ".join(row.profiled_on),
                ", ".join(f"{by} on {device}" for device, by in row.dominated_by.items()),
                "yes" if row.is_served else "no",
            )
            for row in found
        ],
        right=[3 + all_versions + has_feedback],
        whole=0,
    )
    for remark in remarks_on_sets(row.variant for row in found):
        say(f"note: {remark}")
