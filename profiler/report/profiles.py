"""Measurements put together with what they are of: the value that every picture is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from modelless.profiler.measure.measurement import Measurement
from modelless.variants.vocabulary import DeviceClass, Variant


@dataclass(frozen=True, slots=True)
class Device:
    """A device class of one machine: a device class alone is not the same thing everywhere.

    Attributes:
        name: the device class; with what tells it apart where several machines have it.
        device_class: e.g. ``cpu-1``.
        price_usd_per_hour: None where nobody knows.
    """

    name: str
    device_class: str
    processor: str
    fingerprint: str
    price_usd_per_hour: float | None

    def usd_per_1000_items(self, throughput_per_s: float) -> float | None:
        """The price of the time that 1,000 items take at ``throughput_per_s`` items a second."""
        if self.price_usd_per_hour is None:
            return None
        return self.price_usd_per_hour / 3600.0 * 1000.0 / throughput_per_s


@dataclass(frozen=True, slots=True)
class Profile:
    """A variant on a device, as measured.

    Attributes:
        name: short, and of its task's alone: fit for a picture.
        points: one a batch, by ascending batch; at least one.
    """

    variant: Variant
    name: str
    device: Device
    points: tuple[Measurement, ...]


def profiles_of(
    measurements: Iterable[Measurement],
    variants: Iterable[Variant],
    device_classes: Mapping[str, DeviceClass],
) -> tuple[Profile, ...]:
    """A profile a variant and device, by task, device and variant.

    Args:
        measurements: of any machine, one for each variant, device class, batch and fingerprint, as
            ``Records`` keeps them.
        variants: what is of no interest is left out, and so are variants without a measurement.
    """
    known = {variant.id: variant for variant in variants}
    points: dict[tuple[str, str, str], list[Measurement]] = {}
    for row in measurements:
        if row.variant_id in known:
            key = (row.variant_id, row.device_class, row.fingerprint)
            points.setdefault(key, []).append(row)
    devices = _devices((rows[0] for rows in points.values()), device_classes)
    measured = dict.fromkeys(variant_id for variant_id, _, _ in points)
    names = short_names([known[variant_id] for variant_id in measured])
    found = [
        Profile(
            known[variant_id],
            names[variant_id],
            devices[device_class, fingerprint],
            tuple(sorted(rows, key=lambda row: row.batch)),
        )
        for (variant_id, device_class, fingerprint), rows in points.items()
    ]
    return tuple(sorted(found, key=lambda p: (p.variant.task, p.device.name, p.variant.id)))


def short_names(variants: Sequence[Variant]) -> dict[str, str]:
    """Names fit for a picture by variant id, each of one variant of its task only.

    What the models' names of a task begin with, up to a ``-``, is left out where there are
    several: ``lite0 int8-224`` for ``imagenet/efficientnet-lite0/int8-224@1``. The version stays
    where there are two.
    """
    models: dict[str, set[str]] = {}
    for variant in variants:
        models.setdefault(variant.task, set()).add(variant.model)
    starts = {task: _common_start(names) for task, names in models.items()}
    bare = {
        variant.id: f"{variant.model.removeprefix(starts[variant.task])} {variant.name}"
        for variant in variants
    }
    counts = Counter((variant.task, bare[variant.id]) for variant in variants)
    return {
        variant.id: bare[variant.id]
        + (f"@{variant.version}" if counts[variant.task, bare[variant.id]] > 1 else "")
        for variant in variants
    }


def _common_start(names: Iterable[str]) -> str:
    """The words, each up to and with its ``-``, that all names begin with, and all go on from."""
    words = [name.split("-") for name in names]
    if len(words) == 1:
        return ""
    columns = zip(*(each[:-1] for each in words), strict=False)
    shared = takewhile(lambda column: len(set(column)) == 1, columns)
    return "".join(f"{column[0]}-" for column in shared)


def _devices(
    rows: Iterable[Measurement], device_classes: Mapping[str, DeviceClass]
) -> dict[tuple[str, str], Device]:
    """The devices measurements are of, by device class and fingerprint, each under its own name."""
    one_of = {(row.device_class, row.fingerprint): row for row in rows}
    wordings = {
        key: (
            row.device_class,
            f"{row.device_class}, {row.device_name}",
            f"{row.device_class}, {row.device_name}, {row.engine}",
            f"{row.device_class}, {row.device_name}, {row.engine}, {row.fingerprint}",
        )
        for key, row in one_of.items()
    }
    taken = Counter(wording for each in wordings.values() for wording in each)
    devices = {}
    for (device_class, fingerprint), row in one_of.items():
        wording = wordings[device_class, fingerprint]
        known = device_classes.get(device_class)
        devices[device_class, fingerprint] = Device(
            next((each for each in wording if taken[each] == 1), wording[-1]),
            device_class,
            row.device_name,
            fingerprint,
            known.price_usd_per_hour if known is not None else None,
        )
    return devices
