"""Device classes in the store, with the facts and the rates of every machine that has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import select

from modelless.profiler.devices.device import DeviceFacts
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.variants.store import DeviceClassRow, Store
from modelless.variants.vocabulary import DeviceClass

if TYPE_CHECKING:
    from modelless.profiler.devices.microbenchmark import DeviceRates

MOST_MACHINES: Final = 64
"""The most machines kept for a device class; the one measured longest ago is removed first."""


class DeviceRecords:
    """Device rates in the store: one record for each device class and machine fingerprint.

    ``DeviceClassRow.facts`` is ``{fingerprint: {"facts": DeviceFacts, "rates": DeviceRates}}``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def rates(self, device_class: str, fingerprint: str) -> DeviceRates | None:
        """Returns the rates of the class on the machine with ``fingerprint``; None if there are
        none.

        Raises:
            StoreError: the store cannot be read.
        """
        query = select(DeviceClassRow.facts).where(DeviceClassRow.name == device_class)
        with self._store.session() as session:
            machines = session.scalar(query) or {}
        return _rates_of(machines.get(fingerprint, {}))

    def current(self, devices: Iterable[DeviceClass], facts: DeviceFacts) -> dict[str, DeviceRates]:
        """Returns the rates of the classes on this machine with its installed engines, by class
        name.

        Rates that another version of an engine has are left out, and so are classes without rates.

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
        """Returns the device class as any machine first described it; None if none did.

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
        """Store the device classes themselves, for machines that do not have them.

        Raises:
            StoreError: the store cannot be written.
        """
        with self._store.transaction() as session:
            for device in devices:
                if session.get(DeviceClassRow, device.name) is None:
                    session.add(DeviceClassRow(**dataclasses.asdict(device), facts={}))

    def add(self, device: DeviceClass, facts: DeviceFacts, rates: DeviceRates) -> bool:
        """Store ``rates`` in place of older ones of the same machine, in one transaction.

        Rates that are not trusted do not replace trusted ones of the same engine version, and a
        store that is read-only stays as it is.

        Returns:
            Whether the rates were stored.

        Raises:
            StoreError: the store cannot be written.
        """
        if self._store.is_read_only:
            return False
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
            machines[fingerprint] = {"facts": dataclasses.asdict(facts), "rates": rates.document()}
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
    measure: Callable[[DeviceClass, DeviceFacts], DeviceRates] | None = None,
) -> dict[str, DeviceRates]:
    """Returns the rates of each device class of this machine by name, stored ones or new ones.

    It measures and stores what this version of the engine has not measured here before, or measured
    while the machine was too noisy. It stores nothing where no engine is installed.

    Args:
        accept_noise: whether to keep rates that are not trusted.
        measure: measures a device class; ``measure_rates`` by default.

    Raises:
        StoreError: the store cannot be read or written.
    """
    if measure is None:
        from modelless.profiler.devices.microbenchmark import measure_rates

        measure = measure_rates
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


class RemoteDeviceClass(NamedTuple):
    """A device class that another machine has.

    Attributes:
        fingerprint: fingerprint of that machine, the last to be measured of those with the class.
    """

    device: DeviceClass
    fingerprint: str
    measured: tuple[Measurement, ...]


def read_remote_classes(store: Store, names: Iterable[str]) -> list[RemoteDeviceClass]:
    """Returns these device classes as the machine that measured them last knows them.

    A gateway without a card chooses for pools that have one; it uses what was profiled on them.

    Args:
        store: holds the device classes and the measurements.
        names: classes that this host does not have; those without measurements are left out.

    Raises:
        StoreError: the store cannot be read.
    """
    names = sorted(names)
    if not names:
        return []
    records = DeviceRecords(store)
    everything = Records(store).everything()
    found = []
    for name in names:
        device = records.device_class(name)
        rows = [row for row in everything if row.device_class == name]
        if device is not None and rows:
            fingerprint = max(rows, key=lambda row: row.measured_at).fingerprint
            there = tuple(row for row in rows if row.fingerprint == fingerprint)
            found.append(RemoteDeviceClass(device, fingerprint, there))
    return found


def _rates_of(machine: dict[str, Any]) -> DeviceRates | None:
    from modelless.profiler.devices.microbenchmark import DeviceRates

    return DeviceRates.of_document(machine["rates"]) if "rates" in machine else None


def _measured_at(machine: dict[str, Any]) -> str:
    return str(machine["rates"]["measured_at"])
