"""``modelless profile report``: pictures of what was profiled and predicted, as a page and PNGs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.cli.arguments import Scopes, names_of
from modelless.controller.cli.profile_command import in_scopes
from modelless.controller.cli.screen import Json, Steps, emit, home_of, say
from modelless.variants.paths import not_found

if TYPE_CHECKING:
    from modelless.profiler.measure.measurement import Measurement
    from modelless.profiler.report.document import Report
    from modelless.variants.registry.registry import Registry
    from modelless.variants.vocabulary import Variant

EPILOG = (
    "Examples: modelless profile report; "
    "modelless profile report imagenet --device-class cpu-1,cpu-2 --output imagenet-report; "
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
    device_class: Annotated[
        str | None,
        typer.Option("--device-class", metavar="NAME,...", help="Only these device classes."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw measured and predicted profiles as an HTML page and PNG files.

    Throughput against latency with memory, latency against batch with what the cost model predicts,
    accuracy against latency and cost, and how well points are predicted that the cost model has not
    seen. Nothing is measured. Profiles of other machines in the same store are shown too, each
    machine apart.
    """
    from modelless.variants.registry.registry import open_registry

    classes = None if device_class is None else names_of("device-class", device_class)
    with closing(open_registry(home_of(ctx))) as registry:
        found = _report_on(registry, in_scopes(registry.catalog(), scopes or []), classes)
    if output is not None or not as_json:
        folder = output or _FOLDER
        _write(found, folder, "--output")
        say(f"report: {folder / 'report.html'}")
    if as_json:
        emit(_document(found))


def check_can_draw(folder: Path) -> None:
    """Raise now, not after minutes of measuring, if nothing could be drawn into ``folder``.

    Raises:
        EnvironmentUnfitError: Matplotlib is not installed.
        InvalidInputError: the folder cannot be made or written; names ``--report``.
    """
    from modelless.common.drawing import check_matplotlib

    check_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable("--report", folder, error) from None


def draw(registry: Registry, variants: Sequence[Variant], folder: Path) -> Path | None:
    """Draw the report of some variants into ``folder``, and return it; None if none is profiled.

    Raises:
        EnvironmentUnfitError, InvalidInputError: as ``check_can_draw``.
    """
    try:
        found = _report_on(registry, variants, None)
    except NotFoundError:
        return None
    _write(found, folder, "--report")
    return folder


def _report_on(
    registry: Registry, variants: Sequence[Variant], classes: Sequence[str] | None
) -> Report:
    """The report of what is profiled of the variants on the device classes; None is all of them.

    Raises:
        NotFoundError: nothing is, or nothing on one of the device classes.
    """
    from modelless.profiler.cost_model.dominated import in_pairs
    from modelless.profiler.cost_model.learned.placement_model import leave_one_batch_out
    from modelless.profiler.cost_model.learned.prior import shipped_prior
    from modelless.profiler.cost_model.placement_facts import describe_measured
    from modelless.profiler.devices.device import default_device_classes
    from modelless.profiler.devices.host import read_facts
    from modelless.profiler.measure.records import Records
    from modelless.profiler.report.document import report_of
    from modelless.profiler.report.profiles import profiles_of
    from modelless.variants.registry.outcomes import latest_outcomes

    by_id = {variant.id: variant for variant in variants}
    measurements = _wanted(Records(registry.store).everything(), variants, classes)
    devices = {each.name: each for each in default_device_classes(read_facts())}
    subjects = describe_measured(
        measurements, by_id, devices, registry.catalog().models.values(), registry.graph_facts
    )
    return report_of(
        profiles_of(measurements, variants, devices),
        predict_without=leave_one_batch_out(shipped_prior(), subjects),
        is_more_accurate=in_pairs(latest_outcomes(registry.store, by_id)),
    )


def _document(found: Report) -> dict[str, Any]:
    from modelless import __version__

    return {"modelless": __version__, **found.document()}


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


def _write(found: Report, folder: Path, option: str) -> None:
    """Write the report; ``option`` is the one that named the folder.

    Raises:
        EnvironmentUnfitError: Matplotlib is not installed.
        InvalidInputError: the folder cannot be written.
    """
    from modelless.common.drawing import check_matplotlib
    from modelless.profiler.report.page import render

    check_matplotlib()
    document = _document(found)
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
        raise _unwritable(option, folder, error) from None


def _unwritable(option: str, folder: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError.of(
        option, str(folder), f"a folder that can be written ({error.strerror})"
    )
