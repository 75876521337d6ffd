"""Device classes that this host does not have, as another machine measured them.

A gateway without a card chooses for pools that have one: what it knows of them is what was profiled
there, under that machine's fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from modelless.profiler.devices.device_records import DeviceRecords
from modelless.profiler.measure.measurement import Measurement
from modelless.profiler.measure.records import Records
from modelless.variants.store import Store
from modelless.variants.vocabulary import DeviceClass


class Elsewhere(NamedTuple):
    """A device class of another machine.

    Attributes:
        device: the class.
        fingerprint: of the machine; of several that have the class, the one measured last.
        measured: what was measured there.
    """

    device: DeviceClass
    fingerprint: str
    measured: tuple[Measurement, ...]


def read_elsewhere(store: Store, names: Iterable[str]) -> list[Elsewhere]:
    """What the store knows of these device classes from whichever machine measured them last.

    Args:
        names: classes that this host does not have; those that nobody profiled are left out.

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
            found.append(Elsewhere(device, fingerprint, there))
    return found
