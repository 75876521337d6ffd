"""``modelless profile``, ``profile report``, ``device`` and ``engines``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Option

from modelless.controller.cli.arguments import (
    DeviceClasses,
    Scopes,
    batches_of,
    names_of,
    seconds_of,
    shapes_of,
    share_of,
)
from modelless.controller.cli.screen import (
    Json,
    duration,
    emit,
    mebibytes,
    say,
    show_progress,
    show_table,
)

if TYPE_CHECKING:
    from modelless.controller.usecases.measuring.profiling import Machine, Profiles
    from modelless.profiler.cost_model.slowdowns import PairRun
    from modelless.profiler.devices.microbenchmark import DeviceRates
    from modelless.profiler.measure.measurement import Measurement


Again = Annotated[bool, Option("--again", help="Measure what is measured already, too.")]

_FOLDER = Path("profile-report")
_SKIPPED: Final = {
    "already-measured": "measured before",
    "latency-cap": "larger batches left out: slower than a second",
    "budget-spent": "left out: the time was spent (the same command measures them)",
    "predicted": "left out: predicted well enough from the others",
}


def profile(
    ctx: typer.Context,
    scopes: Scopes = None,
    device_class: DeviceClasses = "cpu-1",
    batches: Annotated[str, Option(metavar="N,...", help="Batch sizes to measure.")] = "1,2,4,8",
    shape: Annotated[
        list[str] | None,
        Option(
            metavar="INPUT=SIZES,...",
            help="Sizes of an item, where the task leaves some free, e.g. image=48x320,48x640; "
            "default: some of those that accuracy was measured on.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Time for all of it, e.g. 60s: spent on the measurements that improve "
            "predictions most.",
        ),
    ] = None,
    target_error: Annotated[
        str | None,
        Option(
            metavar="PERCENT",
            help="Stop when the rest is predicted this well (median error), e.g. 5%.",
        ),
    ] = None,
    accept_noise: Annotated[
        bool, Option("--accept-noise", help="Do not wait a moment for a quiet machine.")
    ] = False,
    csv_file: Annotated[
        Path | None, Option("--csv", metavar="FILE", help="Write the measurements as CSV.")
    ] = None,
    again: Again = False,
    drifted: Annotated[
        bool,
        Option(
            "--drifted",
            help="Measure again only what was slower or quicker in service than its profile.",
        ),
    ] = False,
    neighbours: Annotated[
        bool,
        Option(
            "--neighbours",
            help="Also run a few in pairs: what devices of one host cost each other.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure what variants cost on this machine.

    Latency by batch and by the size of items, throughput, memory, load time. What was measured here
    before is not measured again, so an interrupted run goes on where it was left; --drifted
    measures only what was slower or quicker in service since. A figure from a busy machine
    is marked, and measured again by the next run. The device itself is measured first,
    once: see 'modelless device'.

    Examples: modelless profile imagenet --budget 90s --csv imagenet.csv; modelless profile report
    imagenet (pictures of what was measured); modelless profile -- report (a task called report)
    """
    sizes = batches_of(batches)
    budget_s = None if budget is None else seconds_of("budget", budget)
    target = None if target_error is None else share_of("target-error", target_error)
    names = names_of("device-class", device_class)
    from modelless.controller.usecases.measuring.profiling import profile as measure

    with show_progress() as progress:
        found = measure(
            *(scopes or ()), device_classes=names, batches=sizes,
            shapes=shapes_of(shape or ()), budget_s=budget_s,
            target_error=target, accept_noise=accept_noise, again=again, drifted=drifted,
            neighbours=neighbours, csv=csv_file, home=ctx.obj, on_progress=progress,
        )  # fmt: skip
    if as_json:
        emit(found.document())
    else:
        _show_profiles(found)
        if found.pairs:
            _show_pairs(found.pairs)
    for line in _remarks(found):
        say(line)
    if found.failed:
        raise typer.Exit(1)


def profile_report(
    ctx: typer.Context,
    scopes: Scopes = None,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            metavar="DIR",
            help=f"Write report.html, report.json and the pictures there; {_FOLDER} by default. "
            "With --json only where this is given.",
        ),
    ] = None,
    device_class: Annotated[
        str | None, Option(metavar="NAME,...", help="Only these device classes.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw measured and predicted profiles as an HTML page and PNG files.

    Throughput against latency with memory, latency against batch with what the cost model predicts,
    accuracy against latency and cost, and how well points are predicted that the cost model has not
    seen. Nothing is measured. Profiles of other machines in the same store are shown too, each
    machine apart.

    Examples: modelless profile report; modelless profile report imagenet --device-class
    cpu-1,cpu-2 --output imagenet-report; modelless profile report --json > figures.json
    """
    from modelless.controller.usecases.measuring.profile_report import report_profiles

    folder = output or (None if as_json else _FOLDER)
    with show_progress() as progress:
        document = report_profiles(
            *(scopes or ()),
            device_classes=None if device_class is None else names_of("device-class", device_class),
            output=folder,
            home=ctx.obj,
            on_progress=progress,
        )
    if folder is not None:
        say(f"report: {folder / 'report.html'}")
    if as_json:
        emit(document)


def device(ctx: typer.Context, again: Again = False, as_json: Json = False) -> None:
    """Show this machine's hardware and how fast it computes.

    Its device classes are measured by a benchmark of about two seconds each, once: what was
    measured here before is shown again.

    Example: modelless device --json
    """
    from modelless.controller.usecases.measuring.profiling import describe_machine

    machine = describe_machine(again=again, home=ctx.obj)
    if as_json:
        emit(machine.document())
    else:
        _show_facts(machine)
        _show_rates(machine.rates)
    noisy = [name for name, each in machine.rates.items() if not each.trusted]
    absent = [
        each.name
        for each in machine.device_classes
        if each.kind == "cpu" and not machine.rates[each.name].engine
    ]
    if noisy:
        say(
            f"rates of {', '.join(noisy)} are not trusted: it was too noisy; "
            "they are measured again next time"
        )
    if absent:
        say(f"{', '.join(absent)}: no rates, for want of an engine: pip install 'modelless[cpu]'")


def engines(as_json: Json = False) -> None:
    """Show which engines work on this machine, and what to install for the others.

    Each engine is tried: an available one loads variants.

    Example: modelless engines --json
    """
    from modelless.controller.usecases.measuring.profiling import list_engines

    found = list_engines()
    if as_json:
        emit({"engines": found})
        return
    show_table(
        ["engine", "runs on", "version", "available", "what it is"],
        [
            (
                row["engine"],
                row["device_kind"],
                row["version"] or "-",
                "yes" if row["available"] else "no",
                row["summary"],
            )
            for row in found
        ],
        caption="modelless register FILE.onnx ... --engine ENGINE names one",
    )
    for row in found:
        if not row["available"]:
            say(row["missing"])


def _show_profiles(found: Profiles) -> None:
    batches = sorted({row.batch for row in found.measurements})
    cells = []
    sized = any(row.shape for row in found.measurements)
    for placement, shape, by_batch in found.by_placement():
        rows = by_batch.values()
        per_s = max(row.throughput_per_s for row in rows)
        cells.append(
            (
                placement.variant_id,
                placement.device_class,
                *([f"{shape}{' .' * any(row.is_typical for row in rows)}"] if sized else []),
                *(_latency(by_batch.get(batch)) for batch in batches),
                f"{per_s:.0f}" if per_s >= 100.0 else f"{per_s:.1f}",
                mebibytes(max(row.memory_bytes for row in rows)),
                f"{min(row.load_s for row in rows) * 1e3:.0f}",
            )
        )
    caption = "latency: p50/p99, ms a batch"
    if sized:
        caption += "; .: the typical size, which choices go by"
    if not all(row.trusted for row in found.measurements):
        caption += "; *: not trusted, it was too noisy or varies too much"
    headings = [f"batch {batch}" for batch in batches]
    show_table(
        ["variant", "device", *(["item"] * sized), *headings, "items/s", "MiB", "load ms"],
        cells,
        caption=caption,
        right=range(2 + sized, 5 + sized + len(batches)),
        whole=0,
    )


def _show_pairs(runs: Sequence[PairRun]) -> None:
    caption = "medians of one item, alone and while the other runs without a pause"
    if not all(run.trusted for run in runs):
        caption += "; *: not trusted, something else disturbed it"
    show_table(
        ["variant", "device", "kind", "beside", "kind", "alone ms", "together ms", "slowdown"],
        [
            (
                run.placement.variant_id,
                run.placement.device_class,
                run.kind.value,
                run.neighbour.variant_id,
                run.neighbour_kind.value,
                f"{run.alone_s * 1e3:.2f}",
                f"{run.beside_s * 1e3:.2f}",
                f"{run.slowdown:.2f}{'' if run.trusted else ' *'}",
            )
            for run in runs
        ],
        caption=caption,
        right=range(5, 8),
    )


def _remarks(found: Profiles) -> Iterator[str]:
    """Counts, doubts and failures."""
    campaign = found.campaign
    yield f"measured {len(campaign.measured)} points in {duration(campaign.elapsed_s)}"
    for reason, skipped in Counter(campaign.skipped.values()).items():
        yield f"{skipped} points {_SKIPPED[reason]}"
    if doubtful := len(campaign.untrusted):
        yield (
            f"{doubtful} points are not trusted: it was too noisy, or they vary too much; "
            "the same command measures them again"
        )
    for placement, message in found.failed.items():
        yield f"failed: {placement.variant_id} on {placement.device_class}: {message}"


def _latency(row: Measurement | None) -> str:
    if row is None:
        return ""
    return f"{_ms(row.p50_s)}/{_ms(row.p99_s)}{'' if row.trusted else ' *'}"


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.{3 if value < 1.0 else 2 if value < 10.0 else 1}f}"


def _show_facts(machine: Machine) -> None:
    facts, published = machine.facts, machine.published
    cores = f"{facts.cores}"
    if (facts.threads_per_core or 1) > 1:
        cores += f", {facts.threads_per_core} to a physical core"
    caches = ", ".join(f"{level} {size >> 10}" for level, size in facts.cache_bytes.items())
    rows = [
        ("processor", facts.cpu_model),
        ("known as", published.name if published is not None else "unknown"),
        ("cores", cores),
        ("extensions", ", ".join(facts.isa) or "unknown"),
        ("caches, KiB", caches or "unknown"),
        ("memory, MiB", mebibytes(facts.memory_bytes)),
        *(("graphics card", gpu.name) for gpu in facts.gpus),
        ("engines", ", ".join(f"{name} {v}" for name, v in facts.engines.items()) or "none"),
        ("fingerprint", facts.fingerprint),
    ]
    show_table(["this machine", ""], rows)


def _show_rates(rates: Mapping[str, DeviceRates]) -> None:
    every = rates.values()
    rows = []
    for field, heading, probe in (
        ("copy_bytes_per_s", "copy in {}, GB/s", "copy"),
        ("product_multiply_adds_per_s", "matrix product {}, 10^9 multiply-adds/s", "product"),
        ("depthwise_multiply_adds_per_s", "depthwise 3x3 {}, 10^9 multiply-adds/s", "depthwise"),
    ):
        for of in sorted({of for each in every for of in getattr(each, field)}):
            cells = (_cell(each, f"{probe} {of}", getattr(each, field).get(of), 1e9)
                     for each in every)  # fmt: skip
            rows.append((heading.format(of), *cells))
    rows += [
        ("one more operator, us", *(_cell(each, "chain", each.operator_s, 1e-6) for each in every)),
        ("a run of one operator, us", *(_cell(each, "run", each.run_s, 1e-6) for each in every)),
    ]
    show_table(
        ["rate", *(f"{name}{'' if each.trusted else ' *'}" for name, each in rates.items())],
        [row for row in rows if any(row[1:])],
        caption="median, and in brackets p90 / p10 - 1 of the runs; *: not trusted, too noisy",
        right=range(1, 1 + len(rates)),
    )


def _cell(rates: DeviceRates, probe: str, value: float | None, scale: float) -> str:
    return "" if value is None else f"{value / scale:.3g} ({rates.spread[probe]:.0%})"
