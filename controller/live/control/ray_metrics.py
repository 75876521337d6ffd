"""The same counters and gauges in Ray's own Prometheus export, beside Ray's and Ray Serve's.

Ray begins their names with ``ray_`` and ends a counter's with ``_total`` itself. Histograms are
left out: Ray's takes observations one by one, and these were counted into buckets where they were
made. ``GET /metrics`` has them. The Ray that ``modelless up`` starts exports nothing.
"""

from __future__ import annotations

import os
from typing import Any

from modelless.controller.live.control.metrics import FAMILIES, Scalars

METRICS = "RAY_enable_metrics_collection"


class RayMetrics:
    """Hands the scalars on to Ray's agent on this node, which exports them for its scraper."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._told: dict[str, dict[tuple[str, ...], float]] = {}

    def tell(self, scalars: Scalars) -> None:
        """Bring Ray's metrics to these values. A gauge whose labels are gone becomes 0."""
        if os.environ.get(METRICS) == "0":
            return
        if not self._metrics:  # made in the process that tells them, which may be another
            self._metrics = _make()
        for name, metric in self._metrics.items():
            kind, names, _ = FAMILIES[name]
            values, told = scalars.get(name, {}), self._told.get(name, {})
            if kind == "gauge":
                for labels in told.keys() - values.keys():
                    metric.set(0.0, dict(zip(names, labels, strict=True)))
            for labels, value in values.items():
                tags = dict(zip(names, labels, strict=True))
                if kind == "gauge":
                    metric.set(value, tags)
                elif value > (before := told.get(labels, 0.0)):
                    metric.inc(value - before, tags)
            self._told[name] = dict(values)


def _make() -> dict[str, Any]:
    """The metrics by name, as Ray wants them."""
    from ray.util.metrics import Counter, Gauge

    metrics: dict[str, Any] = {}
    for name, (kind, labels, text) in FAMILIES.items():
        if kind == "counter":
            metrics[name] = Counter(name.removesuffix("_total"), text, labels)
        elif kind == "gauge":
            metrics[name] = Gauge(name, text, labels)
    return metrics
