"""This machine: its hardware, how fast it computes, and the engines that work on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from modelless.controller.usecases.home import Home, open_home
from modelless.controller.usecases.profiling import rates_document
from modelless.profiler.devices.device import DeviceFacts, default_device_classes
from modelless.profiler.devices.device_records import DeviceRecords, describe_devices
from modelless.profiler.devices.host import read_facts
from modelless.profiler.devices.known_devices import KnownDevice, find_known_device
from modelless.profiler.devices.microbenchmark import DeviceRates
from modelless.variants.vocabulary import DeviceClass


@dataclass(frozen=True)
class Machine:
    """This machine.

    Attributes:
        rates: what each device class computes in a second, by name.
        published: what is published of its processor; None if the processor is unknown.
    """

    facts: DeviceFacts
    device_classes: Sequence[DeviceClass]
    rates: Mapping[str, DeviceRates]
    published: KnownDevice | None

    def document(self) -> dict[str, Any]:
        return {
            "facts": {**asdict(self.facts), "fingerprint": self.facts.fingerprint},
            "published": None if self.published is None else asdict(self.published),
            "device_classes": [
                {**asdict(each), "rates": rates_document(self.rates[each.name])}
                for each in self.device_classes
            ],
        }


def describe_machine(*, again: bool = False, home: Home = None) -> Machine:
    """The hardware of this machine, and the rates of its device classes.

    Args:
        again: measure the rates again, also where they are known.
    """
    facts = read_facts()
    devices = default_device_classes(facts)
    with open_home(home) as registry:
        rates = describe_devices(devices, facts, DeviceRecords(registry.store), again=again)
    return Machine(facts, devices, rates, find_known_device(facts.cpu_model, "cpu"))


def list_engines() -> list[dict[str, Any]]:
    """Every engine, whether it works here, and what to install if it does not: a row each."""
    from modelless.variants.runtimes.engines import ENGINES, engine_status

    return [
        {
            "engine": status.engine.value,
            "available": status.available,
            "version": status.version,
            "device_kind": status.entry.device_kind,
            "summary": status.entry.summary,
            "install": status.entry.install,
            "missing": status.missing or None,
        }
        for status in map(engine_status, ENGINES)
    ]
