"""A point of a world's profile as a measurement, the form in which the cost model learns it."""

from __future__ import annotations

from datetime import UTC, datetime

from modelless.profiler.measure.measurement import Measurement

_WHEN = datetime(2000, 1, 1, tzinfo=UTC)


def measurement(
    variant_id: str,
    device_class: str,
    batch: int,
    quantiles_s: tuple[float, float, float],
    memory_bytes: float,
    load_s: float,
    size: int = 0,
    *,
    is_typical: bool = True,
) -> Measurement:
    """What a world says of a placement at one batch; nobody measured it here.

    Args:
        quantiles_s: p50, p90, p99 of the whole batch, seconds.
        size: numbers in an item; 0 where all items are alike.
    """
    p50_s, p90_s, p99_s = quantiles_s
    return Measurement(
        variant_id=variant_id,
        device_class=device_class,
        batch=batch,
        threads=1,
        engine="world",
        device_name=device_class,
        repeats=1,
        p50_s=p50_s,
        p90_s=p90_s,
        p99_s=p99_s,
        mean_s=p50_s,
        throughput_per_s=batch / p50_s,
        memory_bytes=round(memory_bytes),
        load_s=load_s,
        trusted=True,
        noise=0.0,
        measured_at=_WHEN,
        fingerprint="world",
        shape=f"item={size}" if size else "",
        is_typical=is_typical,
    )
