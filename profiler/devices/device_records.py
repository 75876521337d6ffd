"""Device classes in the store, with the facts and rates of every machine that has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import select

from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.devices.microbenchmark import DeviceRates, measure_rates
from modelless.variants.store import DeviceClassRow, Store
from modelless.variants.vocabulary import DeviceClass

MOST_MACHINES: Final = 64
"""Machines that are kept, a device class: those measured longest ago are forgotten first."""


class DeviceRecords:
    """Rates in the store: one for each device class and machine fingerprint.

    ``DeviceClassRow.facts`` is ``{fingerprint: {"facts": DeviceFacts, "rates": DeviceRates}}``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def rates(self, device_class: str, fingerprint: str) -> DeviceRates | None:
        """What was measured of the class on the machine with ``fingerprint``; None if nothing.

        Raises:
            StoreError: the store cannot be read.
        """
        query = select(DeviceClassRow.facts).where(DeviceClassRow.name == device_class)
        with self._store.session() as session:
            machines = session.scalar(query) or {}
        return _rates_of(machines.get(fingerprint, {}))

    def current(self, devices: Iterable[DeviceClass], facts: DeviceFacts) -> dict[str, DeviceRates]:
        """What was measured of the classes on this machine by the engine as it is now, by name.

        Another version of an engine has other rates: those are left out, as are classes of which
        nothing was measured.

        Raises:
            StoreError: the store cannot be read.
        """
        known = {
            each.name: self.rates(each.name, facts.fingerprint_of(each.kind)) for each in devices
        }
        return {
            name: rates
            for name, rates in known.items()
            if rates is not None and rates.engine in facts.engine_names
        }

    def device_class(self, name: str) -> DeviceClass | None:
        """The device class as it was first described, on any machine; None if it never was.

        Raises:
            StoreError: the store cannot be read.
        """
        with self._store.session() as session:
            row = session.get(DeviceClassRow, name)
            if row is None:
                return None
            fields = dataclasses.fields(DeviceClass)
            return DeviceClass(**{field.name: getattr(row, field.name) for field in fields})

    def note(self, devices: Sequence[DeviceClass]) -> None:
        """Keep the device classes themselves, for machines that do not have them.

        Raises:
            StoreError: the store cannot be written.
        """
        with self._store.transaction() as session:
            for device in devices:
                if session.get(DeviceClassRow, device.name) is None:
                    session.add(DeviceClassRow(**dataclasses.asdict(device), facts={}))

    def add(self, device: DeviceClass, facts: DeviceFacts, rates: DeviceRates) -> bool:
        """Keep ``rates`` in place of older ones of the same machine, in one transaction.

        Rates that are not trusted do not replace ones of the same version of the engine that are:
        then nothing is written, and the answer is False.

        Raises:
            StoreError: the store cannot be written.
        """
        fingerprint = facts.fingerprint_of(device.kind)
        with self._store.transaction() as session:
            row = session.get(DeviceClassRow, device.name, with_for_update=True)
            machines: dict[str, Any] = {} if row is None else dict(row.facts)
            before = _rates_of(machines.pop(fingerprint, {}))
            if (
                before is not None
                and before.engine == rates.engine
                and before.trusted
                and not rates.trusted
            ):
                return False
            machines[fingerprint] = {
                "facts": dataclasses.asdict(facts),
                "rates": rates.document(),
            }
            for forgotten in sorted(machines, key=lambda name: _measured_at(machines[name]))[
                :-MOST_MACHINES
            ]:
                del machines[forgotten]
            if row is None:
                session.add(DeviceClassRow(**dataclasses.asdict(device), facts=machines))
            else:
                row.facts = machines
        return True


def describe_devices(
    devices: Sequence[DeviceClass],
    facts: DeviceFacts,
    records: DeviceRecords,
    *,
    again: bool = False,
    accept_noise: bool = False,
    measure: Callable[[DeviceClass, DeviceFacts], DeviceRates] = measure_rates,
) -> dict[str, DeviceRates]:
    """The rates of each device class of this machine, by name: kept ones, or measured now and kept.

    Measured now is what was not measured here before by this version of the engine, or while it was
    too noisy to be trusted. Nothing is kept where no engine is installed.

    Args:
        again: measure all of them.
        accept_noise: do not measure again what is not trusted.
        measure: another way to, in tests.

    Raises:
        StoreError: the store cannot be read or written.
    """
    found = {}
    current = records.current(devices, facts)
    for device in devices:
        known = current.get(device.name)
        if again or known is None or not (known.trusted or accept_noise):
            now = measure(device, facts)
            is_kept = bool(now.engine) and records.add(device, facts, now)
            known = now if is_kept or known is None else known
        found[device.name] = known
    return found


def _rates_of(machine: dict[str, Any]) -> DeviceRates | None:
    return DeviceRates.of_document(machine["rates"]) if "rates" in machine else None


def _measured_at(machine: dict[str, Any]) -> str:
    return str(machine["rates"]["measured_at"])
