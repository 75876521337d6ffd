"""``modelless make`` and ``rebuild``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from modelless.controller.cli.arguments import (
    DeviceClasses,
    Framework,
    TaskFile,
    batches_of,
    names_of,
    seconds_of,
)
from modelless.controller.cli.screen import (
    Json,
    accuracy_text,
    duration,
    emit,
    mebibytes,
    say,
    show_progress,
    show_table,
)
from modelless.variants.vocabulary import Precision

if TYPE_CHECKING:
    from modelless.controller.usecases.registry.family import Member
    from modelless.controller.usecases.registry.making import MadeFamily
    from modelless.variants.making.fidelity import Fidelity


def make(
    ctx: typer.Context,
    source: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="The trained model: an .onnx, .pt2 or .skops file, package.module:attribute, or a "
            "registered variant.",
        ),
    ],
    validation: Annotated[
        Path, Option(metavar="PATH", help="Labelled items; see 'modelless validate'.")
    ],
    task: Annotated[
        str | None,
        Option("--task", "-t", help="Task it performs; a new one is read off the graph."),
    ] = None,
    task_file: TaskFile = None,
    metric: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Of a task read off the graph; default: top-1, exact-match of texts.",
        ),
    ] = None,
    model: Annotated[str | None, Option(help="What the model is called; made if new.")] = None,
    framework: Framework = None,
    precision: Annotated[Precision, Option(help="The source's number format.")] = Precision.FP32,
    resolution: Annotated[
        int | None, Option(metavar="PX", help="Side of the source's own input.")
    ] = None,
    calibration: Annotated[
        Path | None,
        Option(
            metavar="PATH",
            help="Inputs to measure ranges on; by default a part of the validation set, held out.",
        ),
    ] = None,
    recipe: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Which variants to make, a YAML file; default: the usual ones."
        ),
    ] = None,
    engine: Annotated[
        str | None, Option(metavar="NAME,...", help="Engines; default: all that work here.")
    ] = None,
    sample: Annotated[
        int | None, Option(metavar="N", help="Measure accuracy on N random items at most.")
    ] = None,
    device_class: DeviceClasses = "cpu-1",
    batches: Annotated[str, Option(metavar="N,...", help="Batch sizes to profile.")] = "1,2,4,8",
    budget: Annotated[
        str | None, Option(metavar="TIME", help="Time for profiling, e.g. 90s.")
    ] = None,
    accept_noise: Annotated[
        bool, Option("--accept-noise", help="Do not wait a moment for a quiet machine.")
    ] = False,
    report: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="Draw the family there; MODEL-report by default, with --json only where given.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a family of variants of one trained model: verified, measured, profiled, compared.

    The model is converted where it is not ONNX and held against its source. The recipe's variants
    are made, each held against the model, registered for every engine that takes it, its accuracy
    measured, and profiled. At the end the table says which are dominated, and by which. If it is
    interrupted, the same command goes on where it stopped. A variant that the model does not allow
    is left out, with the reason.

    Examples: modelless make net.onnx --task imagenet --model mynet --validation photos; modelless
    make package.module:classifier --task digits --model forest --validation test.npz; modelless
    make fashion-mnist/cnn-s/fp32-28 --validation test.npz --recipe mine.yaml --engine
    onnxruntime-cpu --json
    """
    from modelless.controller.usecases.registry.making import make as make_family

    with show_progress() as progress:
        made = make_family(
            source, validation, task=task, task_file=task_file, metric=metric, model=model,
            framework=framework, precision=precision, resolution_px=resolution,
            calibration=calibration, recipe=recipe,
            engines=None if engine is None else names_of("engine", engine), sample=sample,
            device_classes=names_of("device-class", device_class), batches=batches_of(batches),
            budget_s=None if budget is None else seconds_of("budget", budget),
            accept_noise=accept_noise, report=report, draws_report=not as_json, home=ctx.obj,
            on_progress=progress,
        )  # fmt: skip
    if not as_json:
        _show_family(made)
    else:
        emit(made.document())
    for line in _remarks(made):
        say(line)
    for name, reason in made.failed.items():
        say(f"failed: {name}: {reason}")
    if made.failed:
        raise typer.Exit(1)


def rebuild(
    ctx: typer.Context,
    variant: Annotated[
        str, Argument(metavar="VARIANT", help="task/model/variant, or with its @version")
    ],
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write the file there, too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rebuild a variant bit for bit from what 'modelless make' kept, or say why it is impossible.

    A variant whose own file is missing or damaged gets it back. Exit code 5 if a tool, the kind of
    processor or what it was made of has changed, 3 if it was not made by 'modelless make'.

    Examples: modelless rebuild imagenet/mynet/int8; modelless rebuild imagenet/mynet/int8@2
    --output int8.onnx
    """
    from modelless.controller.usecases.registry.making import rebuild as rebuild_variant

    made, size_bytes, damage = rebuild_variant(variant, output=output, home=ctx.obj)
    if damage:
        say(f"note: {damage}")
    name, sha256 = made.id, made.artifact_sha256
    if as_json:
        emit(
            {
                "variant": name, "sha256": sha256, "bytes": size_bytes,
                "restored": bool(damage), "output": output and str(output),
            }
        )  # fmt: skip
        return
    restored = "; its file was damaged and is whole again" if damage else ""
    size = f"the same {size_bytes} bytes"
    typer.echo(f"rebuilt {name}: {size}, sha256 {sha256[:12]}{restored}")


def _show_family(made: MadeFamily) -> None:
    names = [device.name for device in made.devices]
    several = len(names) > 1
    heads = [f"ms{f', {name}' if several else ''}" for name in names]
    members = sorted(made.family.members, key=lambda m: -m.variant.accuracy.percent)
    ids = {member.variant.id for member in members}
    all_trusted = all(row.trusted for (name, _), row in made.measurements.items() if name in ids)
    cells = [
        (
            member.variant.id,
            accuracy_text(member.variant.accuracy),
            *_fidelity(member.origin.fidelity),
            mebibytes(member.variant.artifact_bytes),
            *(_latency(made, member, name) for name in names),
            _memory(made, member),
            ", ".join(
                by.rpartition("/")[2] + (f" on {device}" if several else "")
                for device, by in made.dominated_by(member).items()
            ),
        )
        for member in members
    ]
    show_table(
        [
            "variant",
            "accuracy",
            "SQNR dB",
            "same",
            "file MiB",
            *heads,
            "memory MiB",
            "dominated by",
        ],
        cells,
        caption="SQNR: against the source's outputs, 200 is equal; same: the source's answer, text "
        "or class; ms: median of one item"
        f"{'' if all_trusted else '; *: not trusted, it was too noisy'}",
        right=range(2, 6 + len(names)),
        whole=0,
    )


def _remarks(made: MadeFamily) -> Iterator[str]:
    from modelless.common.pages import count_of
    from modelless.controller.usecases.home import group_names

    members = made.family.members
    for reason, names in group_names(made.family.left_out).items():
        yield f"left out: {names}: {reason}"
    makers = {step.maker for m in members for step in m.origin.lineage.steps}
    engines = {member.variant.engine for member in members}
    dominated = sum(bool(made.dominated_by(member)) for member in members)
    there = sum(member.was_there for member in members)
    yield (
        f"{count_of(len(members), 'variant')} by {count_of(len(makers), 'maker')} on "
        f"{count_of(len(engines), 'engine')}"
        f"{f', {there} of them were there' if there else ''}; {dominated} dominated; "
        f"calibrated on {made.calibration_items} items, accuracy measured on {made.order.sample}; "
        f"{duration(made.elapsed_s)}"
    )
    if made.report is not None:
        yield f"report: {made.report / 'report.html'}"


def _fidelity(fidelity: Fidelity) -> tuple[str, str]:
    sqnr_db, same = fidelity.sqnr_db, fidelity.same_answers
    return ("" if sqnr_db is None else f"{sqnr_db:.0f}", "" if same is None else f"{same:.1%}")


def _latency(made: MadeFamily, member: Member, device: str) -> str:
    row = made.measurements.get((member.variant.id, device))
    if row is None:
        return ""
    return f"{row.p50_s * 1e3 / row.batch:.3g}{'' if row.trusted else ' *'}"


def _memory(made: MadeFamily, member: Member) -> str:
    rows = [made.measurements.get((member.variant.id, device.name)) for device in made.devices]
    return mebibytes(max((r.memory_bytes for r in rows if r is not None), default=0))
