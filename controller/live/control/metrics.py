"""The cluster in Prometheus' terms: what the control loop has been told, as metric families.

Names and units follow Prometheus' conventions (https://prometheus.io/docs/practices/naming/):
base units, ``_total`` for what only grows. Counters begin at 0 when the control loop does, which
Prometheus' ``rate`` expects of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import modelless
from modelless.controller.control.messages import MemberReport
from modelless.controller.device.messages import ChangeKind
from modelless.controller.dispatch.counters import BATCH_BOUNDS, LATENCY_BOUNDS_S, Meters
from modelless.policies.advisory import Advice
from modelless.policies.scopes import base_of
from modelless.profiler.cost_model.online.coverage import merge_coverage
from modelless.variants.vocabulary import DeviceClass

if TYPE_CHECKING:
    from prometheus_client.core import Exemplar, Metric

Labels = Sequence[str]
Scalars = Mapping[str, Mapping[tuple[str, ...], float]]
"""Values of counters and gauges by name and by their labels' values."""


class Family(NamedTuple):
    """One metric family.

    Attributes:
        kind: ``counter``, ``gauge`` or ``histogram``.
    """

    kind: str
    labels: tuple[str, ...]
    help: str


FAMILIES: Mapping[str, Family] = {
    "modelless_up": Family("gauge", (), "1 while the control loop answers."),
    "modelless_store_up": Family("gauge", (), "1 while the store answers the control loop."),
    "modelless_build_info": Family("gauge", ("version",), "1; the version is in the label."),
    "modelless_start_time_seconds": Family(
        "gauge", (), "Unix time at which the control loop started."
    ),
    "modelless_queries_total": Family(
        "counter",
        ("task", "outcome"),
        "Finished queries: served (in time), served-late, refused or cancelled; offline queries: "
        "offline-served and so on.",
    ),
    "modelless_refusals_total": Family(
        "counter", ("task", "reason"), "Refused queries, by reason."
    ),
    "modelless_cache_hits_total": Family(
        "counter", ("task",), "Served queries that a gateway's cache answered."
    ),
    "modelless_http_replies_total": Family(
        "counter",
        ("code",),
        "HTTP and gRPC replies of the gateways by HTTP status, refusals of all kinds included.",
    ),
    "modelless_proxy_refusals_total": Family(
        "counter", ("reason",), "What HAProxy refused itself; no gateway has seen it."
    ),
    "modelless_unmet_queries_total": Family(
        "counter", ("task",), "Queries for which no suitable variant was loaded."
    ),
    "modelless_query_latency_seconds": Family(
        "histogram", ("task",), "Latency of served queries, from arrival to answer."
    ),
    "modelless_queries_open": Family("gauge", ("task",), "Queries waiting or running now."),
    "modelless_queries_waiting": Family("gauge", ("worker",), "Queries in a gateway's queue now."),
    "modelless_batch_items": Family(
        "histogram", ("variant", "device_class"), "Items in a batch that ran."
    ),
    "modelless_device_busy_seconds_total": Family(
        "counter", ("variant", "device_class"), "Device time that batches took."
    ),
    "modelless_query_cost_usd_total": Family(
        "counter", ("task", "device_class"), "Price of the device time that batches took."
    ),
    "modelless_device_cost_usd_total": Family(
        "counter", ("device_class",), "Price of the devices for the time they were present."
    ),
    "modelless_workers": Family(
        "gauge", ("role", "device_class"), "Gateways and pool workers that report."
    ),
    "modelless_instances": Family(
        "gauge", ("variant", "device_class"), "Workers that have the variant loaded."
    ),
    "modelless_loads_total": Family(
        "counter", ("variant", "reason"), "Variants loaded, by reason; failed loads are apart."
    ),
    "modelless_load_failures_total": Family("counter", ("variant",), "Loads that failed."),
    "modelless_evictions_total": Family("counter", ("variant", "reason"), "Evictions, by reason."),
    "modelless_memory_used_bytes": Family(
        "gauge", ("worker", "device_class"), "Measured memory of loaded variants."
    ),
    "modelless_memory_budget_bytes": Family(
        "gauge", ("worker", "device_class"), "Memory budget for variants."
    ),
    "modelless_process_resident_bytes": Family(
        "gauge", ("worker",), "Resident memory of the worker's process."
    ),
    "modelless_device_busy_ratio": Family(
        "gauge",
        ("worker", "device_class"),
        "Share of the last second in which the device was busy.",
    ),
    "modelless_prediction_within_ratio": Family(
        "gauge",
        ("device_class", "level"),
        "Share of batches that took no longer than the predicted quantile; ideally the quantile "
        "itself.",
    ),
    "modelless_prediction_error_ratio": Family(
        "gauge",
        ("device_class",),
        "Recent median of the absolute relative error of the predicted p50.",
    ),
    "modelless_feedback_items_total": Family(
        "counter",
        ("variant", "tenant", "verdict"),
        "Items with feedback: right or wrong; scores count in part.",
    ),
    "modelless_demoted_accuracy_ratio": Family(
        "gauge", ("variant",), "Accuracy that a variant counts for while feedback has demoted it."
    ),
    "modelless_profile_drift_ratio": Family(
        "gauge", ("variant", "device_class"), "Observed over profiled latency, where it drifted."
    ),
    "modelless_advice_total": Family(
        "counter",
        ("seam", "agrees"),
        "Decisions that an advisory policy was asked about: whether it would have done the same.",
    ),
}
"""Every family that is exported, by name."""


MOST_TENANTS: Final = 4096
"""So many tenants are counted; beyond, the one that was seen longest ago is forgotten."""

_ENDS = ("served", "served-late", "refused", "cancelled")
_OUTCOMES: Final = {"served": 0, "served-late": 0, "refused": 1}
"""Where an outcome counts in a row of ``ClusterMetrics.statistics``."""


class ClusterMetrics:
    """Sums of what members report, and their state now; a collector of ``prometheus_client``.

    Attributes:
        replies: HTTP replies by status.
        proxy_refusals: what HAProxy refused, by reason; set by the owner.
        demoted_percent: accuracies that demoted variants count for, by id; set by the owner.
        advice: of advisory policies, by seam; set by the owner.
        is_store_up: whether the store answered last; set by the owner.
    """

    def __init__(
        self,
        device_classes: Mapping[str, DeviceClass],
        reports: Callable[[], Iterable[MemberReport]],
    ) -> None:
        self._device_classes = device_classes
        self._reports = reports
        self._started_s = time.time()
        self._meters = Meters()
        self._exemplars: dict[tuple[tuple[str, ...], int], Exemplar] = {}
        self._changes: Counter[tuple[str, str, str]] = Counter()
        self._unmet: Counter[str] = Counter()
        self.replies: Counter[int] = Counter()
        self.proxy_refusals: Mapping[str, int] = {}
        self.demoted_percent: Mapping[str, float] = {}
        self.advice: Mapping[str, Advice] = {}
        self.is_store_up = True
        self._feedback: dict[tuple[str, str, str], float] = {}
        self._device_s: dict[str, float] = {}
        self._tenants: dict[str, dict[str, int]] = {}

    def add(self, report: MemberReport) -> None:
        from prometheus_client.core import Exemplar

        self._meters.add(report.meters)
        for (scope, bucket), (query_id, latency_s) in report.meters.exemplars.items():
            receipt = {"receipt_id": f"{report.member_id}-{query_id}"}
            self._exemplars[(_task(scope),), bucket] = Exemplar(receipt, latency_s, time.time())
        self._changes.update((c.kind, c.variant_id, c.reason.value) for c in report.changes)
        self.replies.update(report.replies)
        for variant_id, tenant, right, wrong in report.feedback:
            for verdict, items in (("right", right), ("wrong", wrong)):
                labels = variant_id, tenant, verdict
                self._feedback[labels] = self._feedback.get(labels, 0.0) + items
        for (tenant, outcome), queries in report.meters.tenants.items():
            ends = self._tenants[tenant] = self._tenants.pop(tenant, {})  # the latest stands last
            ends[outcome] = ends.get(outcome, 0) + queries
        while len(self._tenants) > MOST_TENANTS:  # without keys, clients may make names up
            del self._tenants[next(iter(self._tenants))]
        for scope, queries in report.unmet.items():
            self._unmet[_task(scope)] += queries
        if report.state is not None:
            name = report.state.device_class
            self._device_s[name] = self._device_s.get(name, 0.0) + report.interval_s

    def statistics(self) -> dict[str, Any]:
        """Return the counts and times of queries and batches since the start, as plain data.

        Returns:
            ``queries``: by scope, how many were served and refused, and the seconds that those
            served took; ``batches``: by variant, items, batches and the seconds devices took;
            ``placements``: the same, by variant and device class;
            ``outcomes``: by task and outcome, how many queries ended so; ``device_cost_usd``: the
            price of the devices for the time they were present.
        """
        queries: dict[str, list[float]] = {}
        for (scope, outcome), count in self._meters.ends.items():
            row = queries.setdefault(base_of(scope), [0, 0, 0.0])
            if outcome in _OUTCOMES:
                row[_OUTCOMES[outcome]] += count
        for scope, latencies in self._meters.latencies.items():
            queries.setdefault(base_of(scope), [0, 0, 0.0])[2] += latencies[-1]
        batches: dict[str, list[float]] = {}
        placements: dict[str, dict[str, list[float]]] = {}
        for (variant_id, device_class), counts in self._meters.batches.items():
            ran = [counts[-2], sum(counts[:-2]), counts[-1]]
            placements.setdefault(variant_id, {})[device_class] = ran
            before = batches.get(variant_id, [0, 0, 0.0])
            batches[variant_id] = [a + b for a, b in zip(before, ran, strict=True)]
        outcomes: dict[str, dict[str, int]] = {}
        for (scope, outcome), count in self._meters.ends.items():
            row_of = outcomes.setdefault(_task(scope), {})
            row_of[outcome] = row_of.get(outcome, 0) + count
        cost_usd = sum(self._cost_usd(name, seconds) for name, seconds in self._device_s.items())
        return {
            "queries": queries,
            "batches": batches,
            "placements": placements,
            "outcomes": outcomes,
            "device_cost_usd": cost_usd,
        }

    def by_task(self) -> dict[str, dict[str, float]]:
        """Return queries by outcome since the start, ``cost_usd`` and ``energy_wh``, of each task.

        The energy is what the busy devices would use at the power that their class states.
        """
        found: dict[str, dict[str, float]] = {}
        for (scope, outcome), queries in self._meters.ends.items():
            row = found.setdefault(_task(scope), {})
            row[outcome] = row.get(outcome, 0) + queries
        for (variant_id, device_class), counts in self._meters.batches.items():
            row = found.setdefault(_task(variant_id), {})
            cost_usd = self._cost_usd(device_class, counts[-1])
            row["cost_usd"] = row.get("cost_usd", 0.0) + cost_usd
            known = self._device_classes.get(device_class)
            energy_wh = known.power_w * counts[-1] / 3600.0 if known is not None else 0.0
            row["energy_wh"] = row.get("energy_wh", 0.0) + energy_wh
        return found

    def by_tenant(self) -> dict[str, dict[str, int]]:
        """Return queries by outcome since the start, of the tenants that queries named last."""
        return {tenant: dict(ends) for tenant, ends in self._tenants.items()}

    def usd_per_hour(self) -> float:
        """Return the price of all members' devices."""
        devices = [report.state.device_class for report in self._reports() if report.state]
        return sum(self._cost_usd(device_class, 3600.0) for device_class in devices)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The families in the format that ``accept`` asks for, and its content type.

        Prometheus' text format, or OpenMetrics with a receipt's id for each bucket of latency.
        """
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(self), content_type

    def collect(self) -> Iterator[Metric]:
        """Every family with its samples now."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        scalars, histograms = self.scalars(), self.histograms()
        for name, (kind, labels, text) in FAMILIES.items():
            if kind == "histogram":
                histogram = HistogramMetricFamily(name, text, labels=labels)
                for values, (bounds, counts, total) in histograms[name].items():
                    pairs = zip([*map(str, bounds), "+Inf"], accumulate(counts), strict=True)
                    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
                    for pair in pairs:
                        exemplar = self._exemplars.get((values, len(buckets)))
                        buckets.append(pair if exemplar is None else (*pair, exemplar))
                    histogram.add_metric(values, buckets, total)
                yield histogram
                continue
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = make(name, text, labels=labels)
            for values, value in scalars.get(name, {}).items():
                family.add_metric(values, value)
            yield family

    def scalars(self) -> Scalars:
        """The values of counters and gauges now."""
        found: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in FAMILIES}

        def add(name: str, labels: tuple[str, ...], value: float) -> None:
            values = found[name]
            values[labels] = values.get(labels, 0.0) + value

        add("modelless_up", (), 1.0)
        add("modelless_store_up", (), float(self.is_store_up))
        add("modelless_build_info", (modelless.__version__,), 1.0)
        add("modelless_start_time_seconds", (), self._started_s)
        for (scope, outcome), queries in self._meters.ends.items():
            add("modelless_queries_total", (_task(scope), outcome), queries)
            for other in _ENDS:  # each is there from the first query on: rates need a beginning
                add("modelless_queries_total", (_task(scope), other), 0.0)
        for (scope, reason), queries in self._meters.refusals.items():
            add("modelless_refusals_total", (_task(scope), reason), queries)
        for scope, queries in self._meters.cache_hits.items():
            add("modelless_cache_hits_total", (_task(scope),), queries)
        for status, replies in self.replies.items():
            add("modelless_http_replies_total", (str(status),), replies)
        for reason, requests in self.proxy_refusals.items():
            add("modelless_proxy_refusals_total", (reason,), requests)
        for task, queries in self._unmet.items():
            add("modelless_unmet_queries_total", (task,), queries)
        for (variant_id, device_class), counts in self._meters.batches.items():
            busy_s = counts[-1]
            add("modelless_device_busy_seconds_total", (variant_id, device_class), busy_s)
            cost_usd = self._cost_usd(device_class, busy_s)
            add("modelless_query_cost_usd_total", (_task(variant_id), device_class), cost_usd)
        for device_class, there_s in self._device_s.items():
            cost_usd = self._cost_usd(device_class, there_s)
            add("modelless_device_cost_usd_total", (device_class,), cost_usd)
        for (change, variant_id, reason), times in self._changes.items():
            if change == ChangeKind.LOAD_FAILED:
                add("modelless_load_failures_total", (variant_id,), times)
            else:
                loaded = change == ChangeKind.LOADED
                name = "modelless_loads_total" if loaded else "modelless_evictions_total"
                add(name, (variant_id, reason), times)
        for told, items in self._feedback.items():
            add("modelless_feedback_items_total", told, items)
        for variant_id, demoted_percent in self.demoted_percent.items():
            add("modelless_demoted_accuracy_ratio", (variant_id,), demoted_percent / 100.0)
        for seam, advice in self.advice.items():
            for (done, would), count in advice.items():
                add("modelless_advice_total", (seam, "yes" if done == would else "no"), count)
        reports = list(self._reports())
        for report in reports:
            _add_member(add, report)
        for row in merge_coverage(coverage for report in reports for coverage in report.coverage):
            for quantile, percent in (
                ("0.5", row.within_p50_percent),
                ("0.9", row.within_p90_percent),
                ("0.99", row.within_p99_percent),
            ):
                if percent is not None:
                    share = percent / 100.0
                    add("modelless_prediction_within_ratio", (row.device_class, quantile), share)
            if row.median_error_percent is not None:
                error = row.median_error_percent / 100.0
                add("modelless_prediction_error_ratio", (row.device_class,), error)
        for drift in {d.placement: d for report in reports for d in report.drifts}.values():
            labels = (drift.placement.variant_id, drift.placement.device_class)
            add("modelless_profile_drift_ratio", labels, drift.factor)
        return found

    def histograms(
        self,
    ) -> Mapping[str, Mapping[tuple[str, ...], tuple[Labels, Sequence[float], float]]]:
        """By name and labels' values: the buckets' bounds, their counts and the sum."""
        latencies: dict[tuple[str, ...], list[float]] = {}
        for scope, counts in self._meters.latencies.items():
            before = latencies.get((_task(scope),), [0.0] * len(counts))
            latencies[_task(scope),] = [a + b for a, b in zip(before, counts, strict=True)]
        latency_bounds = [str(bound) for bound in LATENCY_BOUNDS_S]
        batch_bounds = [str(float(bound)) for bound in BATCH_BOUNDS]
        return {
            "modelless_query_latency_seconds": {
                labels: (latency_bounds, counts[:-1], counts[-1])
                for labels, counts in latencies.items()
            },
            "modelless_batch_items": {
                labels: (batch_bounds, counts[:-2], counts[-2])
                for labels, counts in self._meters.batches.items()
            },
        }

    def _cost_usd(self, device_class: str, seconds: float) -> float:
        known = self._device_classes.get(device_class)
        return known.cost_usd(seconds) if known is not None else 0.0


def _add_member(add: Callable[[str, tuple[str, ...], float], None], report: MemberReport) -> None:
    member_id, state = report.member_id, report.state
    device_class = state.device_class if state is not None else ""
    role = "gateway" if report.is_gateway else "worker"
    add("modelless_workers", (role, device_class), 1.0)
    add("modelless_process_resident_bytes", (member_id,), report.resident_bytes)
    if report.is_gateway:
        add("modelless_queries_waiting", (member_id,), report.queued)
    for scope, queries in report.open_queries.items():
        add("modelless_queries_open", (_task(scope),), queries)
    if state is None:
        return
    labels = (member_id, device_class)
    ready = [instance for instance in state.instances if instance.memory_bytes]
    add("modelless_memory_used_bytes", labels, sum(instance.memory_bytes for instance in ready))
    add("modelless_memory_budget_bytes", labels, state.memory_bytes)
    add("modelless_device_busy_ratio", labels, state.busy_share)
    for instance in ready:
        add("modelless_instances", (instance.variant_id, device_class), 1.0)


def _task(name: str) -> str:
    """The task of a scope or of a variant's id."""
    return name.partition("/")[0]
