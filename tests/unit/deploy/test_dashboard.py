"""Dashboard and rules ask only for what is exported, by labels that it has."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from modelless.controller.live.control.metrics import FAMILIES

from .files import DEPLOY, document

GRAFANA = DEPLOY / "grafana"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script that writes the dashboard."""
    spec = importlib.util.spec_from_file_location("dashboard", GRAFANA / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def queries() -> Iterator[str]:
    """Every PromQL expression in the dashboard and in the rules."""
    dashboard = json.loads((GRAFANA / "modelless.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["query"]
    for group in document("prometheus", "rules.yml")["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def family_of(sample: str) -> str:
    """The family that a sample's name belongs to."""
    base = re.sub(r"_(bucket|sum|count)$", "", sample)
    return base if FAMILIES.get(base, ("",))[0] == "histogram" else sample


def test_the_dashboard_is_as_the_script_writes_it(script: ModuleType) -> None:
    assert (GRAFANA / "modelless.json").read_text() == script.text(), (
        "run python deploy/grafana/dashboard.py"
    )


def test_every_metric_asked_for_is_exported_with_the_labels_asked_for() -> None:
    asked = 0
    for query in queries():
        query = re.sub(r"modelless:\w+:\w+|ALERTS{[^}]*}", "", query)
        samples = re.findall(r"\b(modelless_\w+)(?:\{([^}]*)\})?", query)
        for sample, matchers in samples:
            family = family_of(sample)
            assert family in FAMILIES, f"{sample} in {query}"
            for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers):
                assert label in FAMILIES[family].labels, f"{label} of {sample} in {query}"
            asked += 1
        known = {label for sample, _ in samples for label in FAMILIES[family_of(sample)].labels}
        for labels in re.findall(r"\bby \(([^)]*)\)", query):
            assert set(re.split(r",\s*", labels)) <= known | {"le"}, query
    assert asked > 30


def test_every_kind_of_metric_is_on_the_dashboard() -> None:
    shown = {family_of(name) for query in queries() for name in re.findall(r"modelless_\w+", query)}
    assert set(FAMILIES) - shown == {"modelless_build_info", "modelless_start_time_seconds"}


def test_panels_do_not_overlap() -> None:
    places: set[tuple[int, int]] = set()
    panels: list[dict[str, Any]] = json.loads((GRAFANA / "modelless.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & places, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells


def test_the_rules_file_is_the_one_prometheus_is_told_of() -> None:
    (name,) = document("prometheus", "prometheus.yml")["rule_files"]
    assert (DEPLOY / "prometheus" / name).is_file()
