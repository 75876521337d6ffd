"""Write the Grafana dashboard, ``modelless.json`` beside this file.

A table of panels is easier to read and to change than the JSON that Grafana wants of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

WIDTH, HEIGHT, COLUMNS = 8, 7, 3
TASK = 'task=~"$task"'
_QUANTILE = (
    "histogram_quantile({q}, sum by (le, task) "
    "(rate(modelless_query_latency_seconds_bucket{{" + TASK + "}}[$__rate_interval])))"
)


class Panel(NamedTuple):
    """One panel.

    Attributes:
        title: above it.
        unit: Grafana's name of the unit.
        queries: PromQL by legend.
        about: what it shows and when to worry.
    """

    title: str
    unit: str
    queries: dict[str, str]
    about: str


ROWS: dict[str, tuple[Panel, ...]] = {
    "What clients get": (
        Panel(
            "Answered in time",
            "percentunit",
            {
                "{{task}}": "sum by (task) (rate(modelless_queries_total{"
                + TASK
                + ', outcome="served"}[$__rate_interval])) / sum by (task) '
                "(rate(modelless_queries_total{"
                + TASK
                + ', outcome!="cancelled"}[$__rate_interval]))'
            },
            "The share of queries that were answered before their deadline.",
        ),
        Panel(
            "Latency",
            "s",
            {
                "p50 {{task}}": _QUANTILE.format(q=0.5),
                "p99 {{task}}": _QUANTILE.format(q=0.99),
            },
            "From arrival to answer, of what was answered.",
        ),
        Panel(
            "Queries by outcome",
            "reqps",
            {
                "{{outcome}}": "sum by (outcome) (rate(modelless_queries_total{"
                + TASK
                + "}[$__rate_interval]))"
            },
            "Served in time, served late, refused, or cancelled by the client.",
        ),
        Panel(
            "Refusals by reason",
            "reqps",
            {
                "{{reason}}": "sum by (reason) (rate(modelless_refusals_total{"
                + TASK
                + "}[$__rate_interval]))"
            },
            "queue-too-long and queue-full want more devices; too-slow and too-inaccurate want "
            "other limits or other variants.",
        ),
        Panel(
            "HTTP errors by status",
            "reqps",
            {
                "{{code}}": 'sum by (code) (rate(modelless_http_replies_total{code!="200"}'
                "[$__rate_interval]))",
                "HAProxy: {{reason}}": "sum by (reason) "
                "(rate(modelless_proxy_refusals_total[$__rate_interval]))",
            },
            "4xx are requests that no queue has seen; HAProxy: refused before a gateway saw it.",
        ),
        Panel(
            "Waiting and open queries",
            "short",
            {
                "waiting": "sum(modelless_queries_waiting)",
                "open {{task}}": "sum by (task) (modelless_queries_open{" + TASK + "})",
            },
            "Queues in the gateways, and all that is waiting or running.",
        ),
        Panel(
            "Cost of a thousand answers",
            "currencyUSD",
            {
                "devices": "1000 * sum(rate(modelless_device_cost_usd_total[$__rate_interval])) / "
                'sum(rate(modelless_queries_total{outcome=~"served.*"}[$__rate_interval]))',
                "batches": "1000 * sum(rate(modelless_query_cost_usd_total[$__rate_interval])) / "
                'sum(rate(modelless_queries_total{outcome=~"served.*"}[$__rate_interval]))',
            },
            "Of the devices for as long as they are there, and of the time that batches took.",
        ),
    ),
    "What runs it": (
        Panel(
            "Devices busy",
            "percentunit",
            {"{{device_class}} {{worker}}": "modelless_device_busy_ratio"},
            "The share of its last second each device was busy.",
        ),
        Panel(
            "Items in a batch",
            "short",
            {
                "{{device_class}}": "sum by (device_class) "
                "(rate(modelless_batch_items_sum[$__rate_interval])) / sum by (device_class) "
                "(rate(modelless_batch_items_count[$__rate_interval]))"
            },
            "The mean.",
        ),
        Panel(
            "Device time by variant",
            "percentunit",
            {
                "{{variant}} {{device_class}}": "sum by (variant, device_class) "
                "(rate(modelless_device_busy_seconds_total[$__rate_interval]))"
            },
            "Devices' worth of time that each variant takes.",
        ),
        Panel(
            "Workers",
            "short",
            {"{{role}} {{device_class}}": "sum by (role, device_class) (modelless_workers)"},
            "Gateways and pool workers that report to the control loop.",
        ),
        Panel(
            "Queries that found nothing loaded",
            "reqps",
            {
                "{{task}}": "sum by (task) (rate(modelless_unmet_queries_total{"
                + TASK
                + "}[$__rate_interval]))"
            },
            "They wait for a load if it can end in time, and are refused otherwise.",
        ),
        Panel(
            "Processes' memory",
            "bytes",
            {"{{worker}}": "modelless_process_resident_bytes"},
            "Resident memory.",
        ),
    ),
    "What is loaded": (
        Panel(
            "Memory of loaded variants",
            "percentunit",
            {
                "{{device_class}} {{worker}}": "modelless_memory_used_bytes / "
                "modelless_memory_budget_bytes"
            },
            "The share of its budget.",
        ),
        Panel(
            "Loads and evictions",
            "ops",
            {
                "load: {{reason}}": "sum by (reason) "
                "(rate(modelless_loads_total[$__rate_interval]))",
                "evict: {{reason}}": "sum by (reason) "
                "(rate(modelless_evictions_total[$__rate_interval]))",
                "failed": "sum(rate(modelless_load_failures_total[$__rate_interval]))",
            },
            "By the reason of the order. Many of both are thrashing.",
        ),
        Panel(
            "Copies of each variant",
            "short",
            {
                "{{variant}} {{device_class}}": "sum by (variant, device_class) "
                "(modelless_instances)"
            },
            "Workers that have it loaded.",
        ),
    ),
    "How good the answers are": (
        Panel(
            "Right by feedback",
            "percentunit",
            {
                "{{variant}}": "sum by (variant) "
                '(increase(modelless_feedback_items_total{verdict="right"}[1h])) '
                "/ sum by (variant) (increase(modelless_feedback_items_total[1h]))"
            },
            "The share of the items with feedback that were right, over an hour.",
        ),
        Panel(
            "Demoted variants",
            "percentunit",
            {"{{variant}}": "modelless_demoted_accuracy_ratio"},
            "What a variant counts for while feedback shows it below its stated accuracy.",
        ),
        Panel(
            "Answers from the cache",
            "reqps",
            {
                "{{task}}": "sum by (task) (rate(modelless_cache_hits_total{"
                + TASK
                + "}[$__rate_interval]))"
            },
            "Served without a run, where a scope keeps its answers.",
        ),
    ),
    "How good the predictions are": (
        Panel(
            "Within the predicted quantile",
            "percentunit",
            {"p{{level}} {{device_class}}": "modelless_prediction_within_ratio"},
            "Each should lie at its own quantile.",
        ),
        Panel(
            "Error of the predicted median",
            "percentunit",
            {"{{device_class}}": "modelless_prediction_error_ratio"},
            "Median of |predicted / observed - 1|.",
        ),
        Panel(
            "Drift from the profile",
            "short",
            {"{{variant}} {{device_class}}": "modelless_profile_drift_ratio"},
            "Latency over what was measured; 'modelless profile --drifted' measures it anew.",
        ),
        Panel(
            "Advisory policies",
            "ops",
            {
                "{{seam}} agrees: {{agrees}}": "sum by (seam, agrees) "
                "(rate(modelless_advice_total[1m]))"
            },
            "Whether a policy that only advises would have done the same.",
        ),
        Panel(
            "Store",
            "short",
            {"answers": "modelless_store_up"},
            "0 while the store does not answer.",
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in ROWS.items():
        place = {"h": 1, "w": WIDTH * COLUMNS, "x": 0, "y": top}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row, "gridPos": place, "panels": []}
        )
        top += 1
        for index, panel in enumerate(members):
            left = WIDTH * (index % COLUMNS)
            down = top + HEIGHT * (index // COLUMNS)
            panels.append(_panel(len(panels) + 1, panel, left, down))
        top += HEIGHT * (-(-len(members) // COLUMNS))
    return {
        "uid": "modelless",
        "title": "modelless",
        "tags": ["modelless"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_datasource_variable(), _task_variable()]},
        "panels": panels,
    }


def _panel(number: int, panel: Panel, left: int, down: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": left, "y": down},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _datasource_variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def _task_variable() -> dict[str, Any]:
    return {
        "name": "task",
        "label": "Task",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(modelless_queries_total, task)",
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "refresh": 2,
    }


def text() -> str:
    """What the file holds."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("modelless.json").write_text(text())
