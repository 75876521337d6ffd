"""``modelless config``: settings are checked, versioned, told apart and taken back."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.controller.cli.config import read_values
from modelless.controller.config import (
    HOT,
    Settings,
    changed_by,
    flatten,
    parse_settings,
    with_changes,
)
from modelless.controller.live.settings_revisions import settings_in_force, write_base
from modelless.variants.registry.registry import open_registry

from .conftest import Run

BASE = parse_settings(
    {"slos": {"quick": {"latency_ms": 50}}, "tenants": {"shop": {"max_queries_per_s": 5}}}
)


@pytest.fixture
def started(run: Run, home: Path) -> Run:
    """A home whose last start had settings of its own."""
    with closing(open_registry(home)) as registry:
        write_base(registry.store, BASE)
    return run


def shown(run: Run, key: str) -> dict[str, Any]:
    (row,) = run("config", "show", key, "--json").document["settings"]
    found: dict[str, Any] = row
    return found


def test_a_change_is_a_revision_that_can_be_told_apart_and_taken_back(started: Run) -> None:
    made = started("config", "set", "policies.selection=infaas", "policies.explore=0.02",
                   "--reason", "a try")  # fmt: skip
    assert made.code == 0
    assert "policies.selection: best-value -> infaas" in made.out
    assert "revision 1; nothing is up, it holds from the next start" in made.out
    assert shown(started, "policies.selection") == {
        "key": "policies.selection", "value": "infaas", "source": "revision 1", "by": "config set"
    }  # fmt: skip
    assert shown(started, "policies.scaling")["source"] == "default"
    assert shown(started, "tenants.shop.max_queries_per_s")["source"] == "start"
    started("config", "set", "policies.selection.objective=accuracy")
    assert shown(started, "policies.selection")["value"] == {
        "policy": "infaas", "objective": "accuracy"
    }  # fmt: skip
    back = started("config", "rollback", "--json").document
    assert back["revision"]["number"] == 3
    assert back["revision"]["reason"] == "back to revision 1"
    assert shown(started, "policies.selection")["value"] == "infaas"
    assert started("config", "diff", 0, 3, "--json").document["difference"] == [
        "policies.explore: 0.0 -> 0.02", "policies.selection: best-value -> infaas"
    ]  # fmt: skip
    revisions = started("config", "history", "--json").document["revisions"]
    assert [each["number"] for each in revisions] == [3, 2, 1]
    assert revisions[2]["reason"] == "a try"
    assert revisions[2]["who"]
    assert revisions[2]["changes"] == {"policies.selection": "infaas", "policies.explore": 0.02}
    told = started("history", "--kind", "settings-changed", "--json").document["entries"]
    assert [each["subject"] for each in told] == ["revision 1", "revision 2", "revision 3"]
    assert started("config", "rollback", 0).code == 0
    assert shown(started, "policies.selection")["source"] == "default"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["policies.selection=best-valu"], "best-valu"),
        (["policies.selection.objective=accuracy"], "objective"),
        (["policies.explore=0.9"], "policies.explore: got 0.9; allowed"),
        (["policies.selektion=infaas"], "there is no such key"),
        (["tenants.shop.slo=slow"], "tenants.shop.slo: got 'slow'; allowed: quick"),
        (["cache.scopes=[nowhere]"], "nowhere"),
        (["policies=none"], "policies"),
        (["gateways.count=4"], "modelless upgrade --config FILE"),
        (["http.port=9000"], "modelless down"),
        (["colour=red"], "It is no setting"),
        (["policies.explore"], "KEY=VALUE"),
        (["policies.explore=2024-13-45"], "policies.explore=2024-13-45: not YAML: month must"),
        (["policies.explore={a"], "not YAML"),
        (["policies.selection={policy: infaas, policy: fixed}"], "is there already"),
        (["policies.explore=0.01", "policies.explore=0.02"], "policies.explore once"),
        (["tenants.shop.max_queries_per_s=.inf"], "allowed: a finite number"),
        (["tenants.shop.max_cost_usd_per_day=.nan"], "max_cost_usd_per_day: got nan"),
        (["feedback.retry_s=.inf"], "upgrade --config"),
        (["--unset", "policies.explore"], "none is changed"),
        ([], "KEY=VALUE"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(
    started: Run, words: list[str], told: str
) -> None:
    refused = started("config", "set", *words)
    assert refused.code in (InvalidInputError.exit_code, NotFoundError.exit_code)
    assert told in refused.err
    assert started("config", "history", "--json").document["revisions"] == []


def test_setting_a_section_ends_what_was_said_of_its_keys(started: Run) -> None:
    started("config", "set", "tenants.shop.max_queries_per_s=9", "tenants.other.slo=quick")
    started("config", "set", "tenants={}")
    assert not started("config", "show", "tenants", "--json").document["settings"][0]["value"]
    started("config", "set", "--unset", "tenants")
    assert shown(started, "tenants.shop.max_queries_per_s")["value"] == 5.0


def test_a_start_whose_file_does_not_fit_the_changes_says_how_to_part_with_them(
    started: Run, home: Path
) -> None:
    started("config", "set", "tenants.other.slo=quick")
    assert settings_in_force(home, BASE)[0].tenants["other"].slo == "quick"
    with pytest.raises(InvalidInputError, match="'modelless config rollback 0'"):
        settings_in_force(home, Settings())


def test_there_is_nothing_to_take_back_and_no_such_revision(started: Run) -> None:
    assert "nothing was changed yet" in started("config", "rollback").err
    assert "no revision 7" in started("config", "rollback", 7).err
    assert "config show" in started("config", "show", "colour").err
    assert "no setting was changed" in started("config", "history").out


def test_each_setting_has_a_way_to_be_changed() -> None:
    document = flatten(Settings().model_dump(mode="json"))
    ways = {key: changed_by(key) for key in document}
    assert {key for key, way in ways.items() if way == "config set"} == {
        key for key in document if key.startswith(HOT)
    }
    assert ways["http.max_body_bytes"] == "upgrade"
    assert ways["ingress"] == ways["http.port"] == "up"


@pytest.mark.parametrize(
    "document",
    [
        {"feedback": {"retry_s": float("inf")}},
        {"limits": {"default_latency_ms": float("inf")}},
        {"pools": [{"device_class": "cpu-1", "resources": {"a": float("inf")}}]},
        {"tenants": {"shop": {"max_queries_per_s": float("inf")}}},
    ],
)
def test_numbers_of_settings_are_finite(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="got inf; allowed: a finite number"):
        parse_settings(document)


def test_values_are_read_as_yaml() -> None:
    assert read_values([" a =\n  x: 1\n  y: 2"]) == {"a": {"x": 1, "y": 2}}
    assert read_values(["a=1", "b=[x]", "c={policy: d}"]) == {
        "a": 1, "b": ["x"], "c": {"policy": "d"}
    }  # fmt: skip
    assert with_changes(BASE, {}) == BASE
