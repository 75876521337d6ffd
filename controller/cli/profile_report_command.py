"""``modelless profile report``: pictures of what was profiled and predicted, as a page and PNGs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelless.controller.cli.arguments import Scopes, names_of
from modelless.controller.cli.profile_command import in_scopes
from modelless.controller.cli.screen import Json, Steps, emit, home_of, say
from modelless.variants.errors import InvalidInputError, NotFoundError
from modelless.variants.paths import not_found

if TYPE_CHECKING:
    from modelless.profiler.measurement import Measurement
    from modelless.profiler.report.document import Report
    from modelless.variants.vocabulary import Variant

EPILOG = (
    "Examples: modelless profile report; "
    "modelless profile report imagenet --device cpu-1,cpu-2 --output imagenet-report; "
    "modelless profile report --json > figures.json"
)

_FOLDER = Path("profile-report")


def report(
    ctx: typer.Context,
    scopes: Scopes = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help=f"Write report.html, report.json and the pictures there; {_FOLDER} by default. "
            "With --json only where this is given.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="CLASS,...", help="Only these device classes."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw what was profiled and predicted, as a page and as PNG files.

    Throughput against latency with memory, latency against batch with what the cost model predicts,
    accuracy against latency and cost, and how well points are predicted that the cost model has not
    seen. Nothing is measured. Profiles of other machines in the same store are shown too, each
    machine apart.
    """
    from modelless import __version__
    from modelless.profiler.device import default_device_classes
    from modelless.profiler.host import read_facts
    from modelless.profiler.learning.leave_out import leave_one_batch_out
    from modelless.profiler.learning.prior import shipped_prior
    from modelless.profiler.records import Records
    from modelless.profiler.report.document import report_of
    from modelless.profiler.report.profiles import profiles_of
    from modelless.profiler.subjects import measured_subjects
    from modelless.variants.registry import open_registry

    classes = None if device is None else names_of("device", device)
    with closing(open_registry(home_of(ctx))) as registry:
        catalog = registry.catalog()
        variants = in_scopes(catalog, scopes or [])
        measurements = _wanted(Records(registry.store).everything(), variants, classes)
        devices = {each.name: each for each in default_device_classes(read_facts())}
        subjects = measured_subjects(
            measurements,
            {variant.id: variant for variant in variants},
            devices,
            catalog.models.values(),
            registry.graph_facts,
        )
    found = report_of(
        profiles_of(measurements, variants, devices),
        predict_without=leave_one_batch_out(shipped_prior(), subjects),
    )
    document = {"modelless": __version__, **found.document()}
    if output is not None or not as_json:
        folder = output or _FOLDER
        _write(found, document, folder)
        say(f"report: {folder / 'report.html'}")
    if as_json:
        emit(document)


def _wanted(
    measurements: Sequence[Measurement], variants: Sequence[Variant], classes: Sequence[str] | None
) -> list[Measurement]:
    """Those of the variants and, unless None, the device classes.

    Raises:
        NotFoundError: there is none, or none of one of the device classes.
    """
    ids = {variant.id for variant in variants}
    found = [row for row in measurements if row.variant_id in ids]
    if not found:
        raise NotFoundError("nothing of this is profiled yet: run 'modelless profile' first")
    known = {row.device_class for row in found}
    for name in classes or ():
        if name not in known:
            raise not_found("profiled device class", name, known, "")
    return [row for row in found if classes is None or row.device_class in classes]


def _write(found: Report, document: Mapping[str, Any], folder: Path) -> None:
    """Write the report.

    Raises:
        EnvironmentUnfitError: Matplotlib is not installed.
        InvalidInputError: the folder cannot be written.
    """
    from modelless.profiler.report.page import render
    from modelless.profiler.report.plotting import check_matplotlib

    check_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # First, so that a folder that cannot be written is found out before minutes of drawing.
        text = json.dumps(document, indent=1, allow_nan=False)
        (folder / "report.json").write_text(text, encoding="utf-8")
        with Steps("drawing, pictures") as steps:
            page, files = render(
                found, made=f"modelless {document['modelless']}", progress=steps.at
            )
        for name, content in files.items():
            (folder / name).write_bytes(content)
        (folder / "report.html").write_text(page, encoding="utf-8")
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror})"
        raise InvalidInputError.of("--output", str(folder), allowed) from None
