"""Every alert fires in a test that causes it, alone, and has its section in the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from modelless.controller.live.control.metrics import ClusterMetrics
from tests.unit.live.test_metrics import CPU, gateway

from .files import DEPLOY, ROOT, document

FOLDER = DEPLOY / "prometheus"
ALERTS = {
    rule["alert"]: rule
    for group in document("prometheus", "rules.yml")["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
TESTS = document("prometheus", "rules_test.yml")["tests"]


def promtool(*words: str, text: str = "") -> str:
    """What it says; the test fails with that if it finds a fault."""
    if shutil.which("promtool") is None:
        pytest.skip("alerts are NOT TESTED: apt-get install prometheus brings promtool")
    ran = subprocess.run(
        ["promtool", *words], cwd=FOLDER, input=text, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_configuration_and_rules_are_valid() -> None:
    promtool("check", "config", "--lint-fatal", "prometheus.yml")
    promtool("check", "rules", "--lint-fatal", "rules.yml")


def test_each_alert_fires_when_it_is_caused_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml")


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_is_caused_alone(name: str) -> None:
    (told,) = (each for each in TESTS if each["name"] == name)
    (asked,) = told["promql_expr_test"]
    assert asked["expr"] == 'count by (alertname) (ALERTS{alertstate="firing"})'
    assert asked["exp_samples"] == [{"labels": f'{{alertname="{name}"}}', "value": 1}]


def test_a_rule_that_is_changed_is_noticed(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "rules_test.yml", tmp_path)
    rules = (FOLDER / "rules.yml").read_text()
    (tmp_path / "rules.yml").write_text(rules.replace("[15m])) > 5", "[15m])) > 5000"))
    with pytest.raises(AssertionError, match="ModellessLoadsThrash"):
        promtool("test", "rules", str(tmp_path / "rules_test.yml"))


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_leads_to_its_section(name: str) -> None:
    rule = ALERTS[name]
    address = rule["annotations"]["runbook_url"]
    assert address.endswith(f"/docs/runbook.md#{name.lower()}")
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_runbook_has_the_alerts_and_no_other() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text()
    assert re.findall(r"(?m)^## (\w+)$", page) == list(ALERTS)


def test_metrics_are_as_prometheus_wants_them() -> None:
    report = gateway()
    metrics = ClusterMetrics({"cpu-1": CPU}, lambda: [report])
    metrics.add(report)
    metrics.advice = {"selection": {("a", "b"): 1}}
    promtool("check", "metrics", text=metrics.render()[0].decode())
