"""A real Prometheus scrapes a live run by the files of ``deploy/``, and finds nothing to alert."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from modelless.controller.live.control.metrics import FAMILIES

from .clients import PINNED, ask, wait_until
from .running import Running, free_port, modelless

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
Api = Callable[..., Any]


@pytest.fixture
def prometheus(shared: Running, tmp_path: Path) -> Iterator[Api]:
    """Asks its HTTP interface."""
    if shutil.which("prometheus") is None:
        pytest.skip("scraping is NOT TESTED: apt-get install prometheus")
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [shared.address]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(FOLDER / "rules.yml", tmp_path)
    address = f"127.0.0.1:{free_port()}"
    with subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address={address}",
            "--enable-feature=exemplar-storage",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:

        def api(what: str, **query: str) -> Any:
            url = f"http://{address}/api/v1/{what}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url, timeout=10) as reply:
                return json.load(reply)["data"]

        def answers() -> bool:
            try:
                return bool(api("targets")["activeTargets"])
            except OSError:
                return False

        wait_until(answers, 60.0)
        yield api
        process.send_signal(signal.SIGTERM)


def test_it_scrapes_evaluates_and_alerts_nobody(shared: Running, prometheus: Api) -> None:
    def value(expression: str) -> float:
        rows = prometheus("query", query=expression)["result"]
        return float(rows[0]["value"][1]) if rows else 0.0

    before = value('sum(modelless_queries_total{outcome="served"})')
    for _ in range(5):
        ask(shared, PINNED)
    wait_until(lambda: value('sum(modelless_queries_total{outcome="served"})') >= before + 5, 60.0)
    (target,) = prometheus("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert value("modelless_up") == value("modelless_store_up") == 1.0
    kinds = prometheus("metadata")
    for name, family in FAMILIES.items():
        (told,) = kinds[name.removesuffix("_total")]  # as OpenMetrics names a family
        assert told["type"] == family.kind, name
    bucket = 'modelless_query_latency_seconds_bucket{task="fashion-mnist"}'
    times = {"start": f"{time.time() - 300.0}", "end": f"{time.time()}"}
    found = [
        exemplar
        for series in prometheus("query_exemplars", query=bucket, **times)
        for exemplar in series["exemplars"]
    ]
    latest = max(found, key=lambda exemplar: float(exemplar["timestamp"]))
    why = modelless(shared.home, "why", latest["labels"]["receipt_id"], "--json")
    assert why.returncode == 0, why.stderr
    told_ms = json.loads(why.stdout)["observed_latency_ms"]
    assert told_ms == pytest.approx(1000.0 * float(latest["value"]), rel=0.01)
    missed = 'modelless:missed:ratio_rate5m{task="fashion-mnist"}'
    wait_until(lambda: bool(prometheus("query", query=missed)["result"]), 60.0)
    rules = [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    assert firing <= {"ModellessLoadsFail"}  # another test on this cluster may have caused it
