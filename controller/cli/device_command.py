"""``modelless device``: this machine's hardware, and how fast it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelless.controller.cli.screen import Json, emit, home_of, mebibytes, say, show_table

if TYPE_CHECKING:
    from modelless.profiler.devices.device import DeviceFacts
    from modelless.profiler.devices.known_devices import KnownDevice
    from modelless.profiler.devices.microbenchmark import DeviceRates
    from modelless.variants.vocabulary import DeviceClass

EPILOG = "Example: modelless device --json"


def device(
    ctx: typer.Context,
    again: Annotated[
        bool, typer.Option("--again", help="Measure what is measured already, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show this machine's hardware and how fast it computes.

    Its device classes are measured by a benchmark of about two seconds each, once: what was
    measured here before is shown again.
    """
    from modelless.profiler.devices.device import default_device_classes
    from modelless.profiler.devices.device_records import DeviceRecords, describe_devices
    from modelless.profiler.devices.host import read_facts
    from modelless.profiler.devices.known_devices import find_known_device
    from modelless.variants.registry.registry import open_registry

    facts = read_facts()
    devices = default_device_classes(facts)
    with closing(open_registry(home_of(ctx))) as registry:
        rates = describe_devices(devices, facts, DeviceRecords(registry.store), again=again)
    published = find_known_device(facts.cpu_model, "cpu")
    if as_json:
        emit(_document(facts, devices, rates, published))
    else:
        _show_facts(facts, published)
        _show_rates(rates)
    for line in remarks(rates):
        say(line)


def remarks(rates: Mapping[str, DeviceRates]) -> list[str]:
    """What a person should know of the rates: which cannot be trusted, which are not there."""
    lines = []
    noisy = [name for name, each in rates.items() if not each.trusted]
    absent = [name for name, each in rates.items() if not each.engine]
    if noisy:
        lines.append(
            f"rates of {', '.join(noisy)} are not trusted: it was too noisy; "
            "they are measured again next time"
        )
    if absent:
        lines.append(
            f"{', '.join(absent)}: no rates, for want of an engine: pip install 'modelless[cpu]'"
        )
    return lines


def rates_document(rates: DeviceRates) -> dict[str, Any]:
    """Rates as plain data for programs."""
    return {name: value for name, value in rates.document().items() if name != "benchmark"}


def _document(
    facts: DeviceFacts,
    devices: Sequence[DeviceClass],
    rates: Mapping[str, DeviceRates],
    published: KnownDevice | None,
) -> dict[str, Any]:
    import dataclasses

    return {
        "facts": {**dataclasses.asdict(facts), "fingerprint": facts.fingerprint},
        "published": None if published is None else dataclasses.asdict(published),
        "device_classes": [
            {**dataclasses.asdict(each), "rates": rates_document(rates[each.name])}
            for each in devices
        ],
    }


def _show_facts(facts: DeviceFacts, published: KnownDevice | None) -> None:
    cores = f"{facts.cores}"
    if facts.threads_per_core is not None and facts.threads_per_core > 1:
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
    show_table(
        ["rate", *(f"{name}{'' if each.trusted else ' *'}" for name, each in rates.items())],
        [
            (heading, *(_cell(each, probe, pick(each), scale) for each in rates.values()))
            for heading, probe, pick, scale in _rows(rates)
        ],
        caption="median, and in brackets p90 / p10 - 1 of the runs; *: not trusted, too noisy",
        right=range(1, 1 + len(rates)),
    )


_Row = tuple[str, str, "Callable[[DeviceRates], float | None]", float]


def _rows(rates: Mapping[str, DeviceRates]) -> list[_Row]:
    """(heading, probe, figure of a class, unit) of every row that any class has."""
    rows: list[_Row] = []
    for field, heading, probe in (
        ("copy_bytes_per_s", "copy in {}, GB/s", "copy"),
        ("product_multiply_adds_per_s", "matrix product {}, 10^9 multiply-adds/s", "product"),
        ("depthwise_multiply_adds_per_s", "depthwise 3x3 {}, 10^9 multiply-adds/s", "depthwise"),
    ):
        kinds = dict.fromkeys(of for each in rates.values() for of in getattr(each, field))
        rows += [
            (heading.format(of), f"{probe} {of}", _picker(field, of), 1e9) for of in sorted(kinds)
        ]
    rows.append(("one more operator, us", "chain", lambda each: each.operator_s, 1e-6))
    rows.append(("a run of one operator, us", "run", lambda each: each.run_s, 1e-6))
    return [row for row in rows if any(row[2](each) is not None for each in rates.values())]


def _picker(field: str, of: str) -> Callable[[DeviceRates], float | None]:
    return lambda rates: getattr(rates, field).get(of)


def _cell(rates: DeviceRates, probe: str, value: float | None, scale: float) -> str:
    if value is None:
        return ""
    return f"{value / scale:.3g} ({rates.spread[probe]:.0%})"
