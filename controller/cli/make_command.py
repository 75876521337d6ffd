"""``modelless make``: one trained model becomes a family of variants, measured and registered."""

from __future__ import annotations

import gc
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelless.common.errors import EnvironmentUnfitError, NoisyMachineError
from modelless.controller.cli.arguments import DeviceClasses, batches_of, names_of, seconds_of
from modelless.controller.cli.failures import Failed
from modelless.controller.cli.screen import Json, emit, home_of, say
from modelless.variants.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelless.controller.cli.family import Family
    from modelless.profiler.devices.device import DeviceFacts
    from modelless.profiler.measure.campaign import CampaignSettings
    from modelless.variants.registry.registry import Registry
    from modelless.variants.vocabulary import DeviceClass

EPILOG = (
    "Examples: modelless make net.onnx --task imagenet --model mynet --validation photos; "
    "modelless make package.module:classifier --task digits --model forest --validation test.npz; "
    "modelless make fashion-mnist/cnn-s/fp32-28 --validation test.npz --recipe mine.yaml "
    "--engine onnxruntime-cpu --json"
)


def make(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The trained model: an .onnx, .pt2 or .skops file, package.module:attribute, or a "
            "registered variant.",
        ),
    ],
    validation: Annotated[
        Path,
        typer.Option(
            "--validation", metavar="PATH", help="Labelled items; see 'modelless validate'."
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option("--task", "-t", help="Task it performs; a new one is read off the graph."),
    ] = None,
    task_file: Annotated[
        Path | None,
        typer.Option("--task-file", metavar="FILE", help="A new task, described in YAML."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric", metavar="NAME", help="Of a task read off the graph; default: top-1."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="What the model is called; made if new.")
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework",
            help="Framework of SOURCE where it cannot be told: scikit-learn, pytorch, tensorflow "
            "or onnx.",
        ),
    ] = None,
    precision: Annotated[
        Precision, typer.Option("--precision", help="The source's number format.")
    ] = Precision.FP32,
    resolution: Annotated[
        int | None,
        typer.Option("--resolution", metavar="PX", help="Side of the source's own input."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            metavar="PATH",
            help="Inputs to measure ranges on; by default a part of the validation set, held out.",
        ),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(
            "--recipe",
            metavar="FILE",
            help="Which variants to make, a YAML file; default: the usual ones.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME,...", help="Engines; default: all that work here."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", help="Measure accuracy on N random items at most."),
    ] = None,
    device_class: DeviceClasses = "cpu-1",
    batches: Annotated[
        str, typer.Option("--batches", metavar="N,...", help="Batch sizes to profile.")
    ] = "1,2,4,8",
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="TIME", help="Time for profiling, e.g. 90s."),
    ] = None,
    accept_noise: Annotated[
        bool,
        typer.Option("--accept-noise", help="Profile on a noisy machine too; not trusted then."),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="Draw the family there; MODEL-report by default, with --json only where given.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a family of variants of one trained model: verified, measured, profiled, compared.

    The model is converted where it is not ONNX and held against its source. The recipe's variants
    are made, each held against the model, registered for every engine that takes it, its accuracy
    measured, and profiled. Then it is said which are dominated, and by which. Interrupted, the same
    command goes on where it was. A variant that the model does not allow is left out, and told.
    """
    started_s = time.monotonic()
    from modelless.controller.cli.family import make_family
    from modelless.controller.cli.family_order import Asked, order_of, pick_engines
    from modelless.controller.cli.family_summary import summarise
    from modelless.controller.cli.profile_command import pick_device_classes
    from modelless.controller.cli.profile_report_command import check_can_draw, draw
    from modelless.profiler.devices.device import default_device_classes
    from modelless.profiler.devices.host import read_facts
    from modelless.profiler.measure.campaign import CampaignSettings
    from modelless.variants.registry.registry import open_registry

    settings = CampaignSettings(
        batches=batches_of(batches),
        budget_s=None if budget is None else seconds_of("budget", budget),
        accept_noise=accept_noise,
    )
    facts = read_facts()
    devices = pick_device_classes(
        names_of("device-class", device_class), default_device_classes(facts)
    )
    engines = pick_engines(None if engine is None else names_of("engine", engine), devices)
    if report is not None:
        check_can_draw(report)
    asked = Asked(
        source, framework, task, task_file, metric, model, precision, resolution, validation,
        calibration, sample, recipe, engines,
    )  # fmt: skip
    home = home_of(ctx)
    with closing(open_registry(home)) as registry:
        order = order_of(registry, asked)
        family = make_family(registry, home, order)
        noisy: NoisyMachineError | None = None
        failed: dict[str, str] = {}
        try:
            failed = _profile(registry, family, devices, facts, settings)
        except NoisyMachineError as error:
            noisy = error
        summary = summarise(registry, order, family, devices, facts)
        if report is not None or not as_json:
            folder = report or Path(f"{order.model.name}-report")
            try:
                summary.report = draw(registry, [m.variant for m in family.members], folder)
            except EnvironmentUnfitError as error:  # found out before, where it was asked for
                say(f"note: nothing is drawn: {error}")
    summary.elapsed_s = time.monotonic() - started_s
    if as_json and noisy is None:
        emit(summary.document())
    elif not as_json:
        summary.show()
    for line in summary.remarks():
        say(line)
    for name, reason in failed.items():
        say(f"failed: {name}: {reason}")
    if noisy is not None:
        raise Failed(
            NoisyMachineError(f"made and registered, but not profiled: {noisy}"),
            summary.document() if as_json else {},
        )
    if failed:
        raise typer.Exit(1)


def _profile(
    registry: Registry,
    family: Family,
    devices: Sequence[DeviceClass],
    facts: DeviceFacts,
    settings: CampaignSettings,
) -> dict[str, str]:
    """Measure what the family's variants cost; what went wrong, by placement.

    Raises:
        NoisyMachineError: it is too noisy now. Nothing was measured.
    """
    from modelless.controller.cli.campaigns import jobs_of, measure_jobs
    from modelless.profiler.measure.records import Records

    gc.collect()  # so that no variant is measured in the memory that making left behind
    variants = [member.variant for member in family.members]
    jobs, damaged = jobs_of(registry, registry.catalog(), variants, devices)
    result = measure_jobs(jobs, Records(registry.store), facts, settings)
    return {
        f"{placement.variant_id} on {placement.device_class}": reason
        for placement, reason in {**damaged, **result.failed}.items()
    }
