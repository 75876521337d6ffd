"""The profile report: pictures of what was profiled and predicted, as a page and PNG files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from modelless import __version__
from modelless.common.drawing import check_matplotlib
from modelless.common.errors import NotFoundError
from modelless.common.files import write_whole
from modelless.controller.usecases.home import Home, find_variants, open_home, writing
from modelless.controller.usecases.progress import Progress, Step, ignore
from modelless.profiler.cost_model.dominated import in_pairs
from modelless.profiler.cost_model.placement_facts import describe_measured
from modelless.profiler.cost_model.unmeasured.machine_predictor import leave_one_batch_out
from modelless.profiler.cost_model.unmeasured.prior import shipped_prior
from modelless.profiler.devices.device import default_device_classes
from modelless.profiler.devices.host import read_facts
from modelless.profiler.measure.records import Records
from modelless.profiler.report.document import Report, report_of
from modelless.profiler.report.page import render
from modelless.profiler.report.profiles import profiles_of
from modelless.variants.paths import not_found
from modelless.variants.registry.outcomes import latest_outcomes
from modelless.variants.registry.registry import Registry
from modelless.variants.vocabulary import Variant


def report_profiles(
    *scopes: str,
    device_classes: Sequence[str] | None = None,
    output: Path | None = None,
    home: Home = None,
    on_progress: Progress = ignore,
) -> dict[str, Any]:
    """The report of what is profiled, as plain data; nothing is measured.

    Args:
        scopes: ``task``, ``task/model`` or ``task/model/variant``; none is everything.
        device_classes: only these; None is all of them.
        output: write ``report.html``, ``report.json`` and the pictures to this folder.

    Raises:
        NotFoundError: nothing of this is profiled.
        EnvironmentUnfitError: Matplotlib is not installed, and an output is wanted.
        InvalidInputError: the folder cannot be written.
    """
    with open_home(home) as registry:
        found = _report_on(registry, find_variants(registry.catalog(), scopes), device_classes)
    if output is not None:
        _write(found, output, "--output", on_progress)
    return _document(found)


def check_can_draw(folder: Path) -> None:
    """Raise, before anything is measured, if nothing could be drawn into ``folder``.

    Raises:
        EnvironmentUnfitError: Matplotlib is not installed.
        InvalidInputError: the folder cannot be made or written; names ``--report``.
    """
    check_matplotlib()
    with writing("--report", folder, "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass


def draw(
    registry: Registry, variants: Sequence[Variant], folder: Path, on_progress: Progress
) -> Path | None:
    """Draw the report of some variants into ``folder``, and return it; None if none is profiled.

    Raises:
        EnvironmentUnfitError, InvalidInputError: as ``check_can_draw``.
    """
    try:
        found = _report_on(registry, variants, None)
    except NotFoundError:
        return None
    _write(found, folder, "--report", on_progress)
    return folder


def _report_on(
    registry: Registry, variants: Sequence[Variant], classes: Sequence[str] | None
) -> Report:
    """The report of what is profiled of the variants on the device classes; None is all of them."""
    by_id = {variant.id: variant for variant in variants}
    found = [row for row in Records(registry.store).everything() if row.variant_id in by_id]
    if not found:
        raise NotFoundError("nothing of this is profiled yet: run 'modelless profile' first")
    known = {row.device_class for row in found}
    for name in classes or ():
        if name not in known:
            raise not_found("profiled device class", name, known, "")
    measurements = [row for row in found if classes is None or row.device_class in classes]
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
    return {"modelless": __version__, **found.document()}


def _write(found: Report, folder: Path, option: str, on_progress: Progress) -> None:
    """Write the report; ``option`` is the one that named the folder."""
    check_matplotlib()

    def show(done: int, total: int, now: str = "") -> None:
        on_progress(Step("drawing, pictures", done, total, now))

    with writing(option, folder, "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        # First, so that an unwritable folder fails before minutes of drawing.
        text = json.dumps(_document(found), indent=1, allow_nan=False)
        write_whole(folder / "report.json", text.encode(), mode=0o644)
        page, files = render(found, made=f"modelless {__version__}", progress=show)
        for name, content in files.items():
            write_whole(folder / name, content, mode=0o644)
        write_whole(folder / "report.html", page.encode(), mode=0o644)
