"""Promoting, trying and taking back versions in the store, and what the history says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.variants.artifacts import ArtifactStore
from modelless.variants.registry import promotion
from modelless.variants.registry.promotion import (
    begin_trial,
    end_trial,
    keep_evidence,
    promote,
    read_change,
    read_evidence,
    read_lines,
    rollback,
)
from modelless.variants.registry.registry import Registry
from modelless.variants.registry.removal import remove
from modelless.variants.registry.versions import Line, Trial, TrialRules
from modelless.variants.store import HistoryRow, Store
from modelless.variants.vocabulary import Engine, Precision
from tests.builders import ACCURACY, MODEL, TASK, tiny_bytes

NAME = "pixels/mean/fp32"
RULES = TrialRules(alpha=0.01, max_s=60.0)


@pytest.fixture
def registry(store: Store, tmp_path: Path) -> Registry:
    """With three versions of one variant, and one of another."""
    registry = Registry(store, ArtifactStore(tmp_path / "artifacts"))
    registry.add_task(TASK)
    registry.add_model(MODEL)
    for name, scale in (("fp32", 1.0), ("fp32", 2.0), ("fp32", 3.0), ("other", 1.0)):
        register(registry, name, scale)
    return registry


def register(registry: Registry, name: str, scale: float) -> None:
    registry.register_variant(
        task="pixels", model="mean", name=name, precision=Precision.FP32,
        engine=Engine.ONNXRUNTIME_CPU, accuracy=ACCURACY, artifact=tiny_bytes(scale),
    )  # fmt: skip


def line(registry: Registry) -> Line:
    return read_lines(registry.store).by_name[NAME]


def current(registry: Registry) -> list[str]:
    return sorted(variant.id for variant in registry.catalog().variants)


def history(registry: Registry) -> list[tuple[str, str, str, dict[str, Any]]]:
    with registry.store.session() as session:
        rows = session.scalars(select(HistoryRow).order_by(HistoryRow.id))
        return [(row.kind, row.subject, row.reason, row.details) for row in rows]


def begin(registry: Registry, version: int, **more: Any) -> Trial:
    return begin_trial(registry.store, f"{NAME}@{version}", 0.05, RULES, "ann", "a try", **more)


def test_of_what_nobody_promoted_the_first_is_current(registry: Registry) -> None:
    assert current(registry) == [f"{NAME}@1", "pixels/mean/other@1"]
    assert read_change(registry.store)[0] == 0
    assert read_lines(registry.store).changed == frozenset()


def test_once_promoted_a_new_version_changes_nothing(registry: Registry) -> None:
    assert promote(registry.store, f"{NAME}@2", "ann", "it is better") == Line(NAME, 2, (1,))
    register(registry, "fp32", 4.0)
    register(registry, "other", 4.0)
    assert current(registry) == [f"{NAME}@2", "pixels/mean/other@1"]
    assert registry.catalog().resolve("pixels/mean/fp32@4").variants[0].version == 4


def test_a_catalog_takes_the_versions_that_it_knows(registry: Registry) -> None:
    catalog = registry.catalog().with_current({NAME: 1})
    assert catalog.resolve(NAME).variants[0].version == 1
    later = catalog.with_current({NAME: 9, "pixels/mean/other": 1})  # 9 was registered since
    assert later.resolve(NAME).variants[0].version == 1
    assert len(later.variants) == 2


def test_a_catalog_lets_nobody_name_what_was_retired_and_still_knows_it(
    registry: Registry,
) -> None:
    catalog = registry.catalog()
    fewer = catalog.with_current({NAME: 2}, {NAME})
    assert [each.id for each in fewer.variants] == ["pixels/mean/other@1"]
    assert f"{NAME}@2" in fewer.versions  # a batch may still run on it
    with pytest.raises(NotFoundError, match=f"{NAME}@1 is not served: it was retired"):
        fewer.resolve(NAME)
    nothing = catalog.with_current({}, {NAME, "pixels/mean/other"})
    assert not nothing.tasks
    with pytest.raises(NotFoundError, match=r"is not served: it was retired.*modelless variants"):
        nothing.resolve("pixels")


def test_rollback_goes_back_step_by_step(registry: Registry) -> None:
    for version in (2, 3):
        promote(registry.store, f"{NAME}@{version}", "ann", "forward")
    assert line(registry) == Line(NAME, 3, (1, 2))
    assert rollback(registry.store, NAME, "ann", "back").current == 2
    assert rollback(registry.store, NAME, "ann", "back").current == 1
    with pytest.raises(InvalidInputError, match=r"its version 1 has none.*modelless promote"):
        rollback(registry.store, NAME, "ann", "back")


def test_history_says_who_why_and_from_what_to_what(registry: Registry) -> None:
    promote(registry.store, f"{NAME}@2", "ann", "it is better")
    rollback(registry.store, NAME, "bob", "it is not")
    assert history(registry) == [
        (
            "promoted",
            NAME,
            "it is better",
            {
                "who": "ann",
                "before": {"current": 1, "canary": None},
                "after": {"current": 2, "canary": None},
            },
        ),
        (
            "rolled-back",
            NAME,
            "it is not",
            {
                "who": "bob",
                "before": {"current": 2, "canary": None},
                "after": {"current": 1, "canary": None},
            },
        ),
    ]
    assert read_change(registry.store)[0] == 2


def test_a_version_is_tried_against_the_current_one(registry: Registry) -> None:
    promote(registry.store, f"{NAME}@2", "ann", "forward")
    trial = begin(registry, 3)
    assert (trial.version, trial.against, trial.share, trial.rules) == (3, 2, 0.05, RULES)
    assert line(registry) == Line(NAME, 2, (1,), trial)
    assert current(registry)[0] == f"{NAME}@2"
    assert history(registry)[-1][3]["after"] == {"current": 2, "canary": 3}


def test_it_may_be_said_against_which(registry: Registry) -> None:
    assert begin(registry, 3, against=1).against == 1
    assert line(registry).current == 1


def test_a_trial_ends_once(registry: Registry) -> None:
    trial = begin(registry, 3)
    details = {"guards": []}
    after = end_trial(registry.store, trial, "modelless", "worse", details, promoted=False)
    assert after == Line(NAME, 1)
    assert end_trial(registry.store, trial, "modelless", "fine", {}, promoted=True) is None
    kind, _, reason, told = history(registry)[-1]
    assert (kind, reason, told["who"], told["guards"]) == (
        "canary-rolled-back",
        "worse",
        "modelless",
        [],
    )


def test_a_good_one_becomes_current(registry: Registry) -> None:
    trial = begin(registry, 3)
    after = end_trial(registry.store, trial, "modelless", "fine", {}, promoted=True)
    assert after == Line(NAME, 3, (1,))
    assert rollback(registry.store, NAME, "ann", "hm").current == 1


def test_by_hand_a_trial_is_promoted_or_taken_back(registry: Registry) -> None:
    begin(registry, 3)
    with pytest.raises(InvalidInputError, match="@3, which is on trial"):
        promote(registry.store, f"{NAME}@1", "ann", "no")
    assert promote(registry.store, f"{NAME}@3", "ann", "now") == Line(NAME, 3, (1,))
    begin(registry, 1)
    assert rollback(registry.store, NAME, "ann", "enough") == Line(NAME, 3, (1,))


def test_evidence_is_kept_while_the_trial_is_on(registry: Registry) -> None:
    trial = begin(registry, 3)
    assert read_evidence(registry.store, trial) is None
    number = read_change(registry.store)[0]
    keep_evidence(registry.store, trial, {"tried": 1})
    assert read_evidence(registry.store, trial) == {"tried": 1}
    assert read_change(registry.store)[0] == number  # not a change
    rollback(registry.store, NAME, "ann", "over")
    keep_evidence(registry.store, trial, {"tried": 2})
    assert read_evidence(registry.store, trial) is None


@pytest.mark.parametrize(
    ("version", "more", "says"),
    [
        (1, {}, "a version other than the current one, .* the current one, 1"),
        (2, {"against": 9}, "a version other than the current one, .* the current one, 1"),
        (9, {}, "No version of pixels/mean/fp32 is called '9'"),
    ],
)
def test_trials_that_make_no_sense(
    registry: Registry, version: int, more: dict[str, int], says: str
) -> None:
    with pytest.raises((InvalidInputError, NotFoundError), match=says):
        begin(registry, version, **more)
    assert read_change(registry.store)[0] == 0


def test_the_only_version_has_nothing_to_be_compared_with(registry: Registry) -> None:
    with pytest.raises(InvalidInputError, match="a version other than the current one"):
        begin_trial(registry.store, "pixels/mean/other@1", 0.05, RULES, "ann", "a try")


def test_one_trial_a_task(registry: Registry) -> None:
    begin(registry, 3)
    register(registry, "other", 2.0)
    with pytest.raises(InvalidInputError, match=f"one trial a task.*modelless rollback {NAME}"):
        begin_trial(registry.store, "pixels/mean/other@2", 0.05, RULES, "ann", "a try")


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_of_all_or_nothing_is_no_share(registry: Registry, share: float) -> None:
    with pytest.raises(InvalidInputError, match="share"):
        begin_trial(registry.store, f"{NAME}@3", share, RULES, "ann", "a try")


@pytest.mark.parametrize("name", ["pixels", "pixels/mean/fp32", "pixels/mean"])
def test_a_version_must_be_named_to_promote_it(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidInputError, match="task/model/variant@version"):
        promote(registry.store, name, "ann", "why")


@pytest.mark.parametrize("name", ["pixels", "pixels/mean/fp32@2"])
def test_no_version_is_named_to_roll_back(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidInputError, match="without a version"):
        rollback(registry.store, name, "ann", "why")


def test_the_newest_can_be_promoted_and_then_stays(registry: Registry) -> None:
    assert promote(registry.store, f"{NAME}@3", "ann", "keep it") == Line(NAME, 3, (1,))
    register(registry, "fp32", 4.0)
    assert current(registry)[0] == f"{NAME}@3"
    with pytest.raises(InvalidInputError, match="a version other than the current one, 3"):
        promote(registry.store, f"{NAME}@3", "ann", "why")


def test_names_that_are_not_there(registry: Registry) -> None:
    with pytest.raises(NotFoundError, match="Did you mean pixels/mean/fp32"):
        rollback(registry.store, "pixels/mean/fp31", "ann", "why")


def test_predecessors_are_bounded(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "EARLIER_KEPT", 2)
    register(registry, "fp32", 4.0)
    for version in (2, 3, 4):
        promote(registry.store, f"{NAME}@{version}", "ann", "on")
    assert line(registry) == Line(NAME, 4, (2, 3))


def test_no_number_is_given_twice_whatever_is_removed(registry: Registry, tmp_path: Path) -> None:
    first = begin(registry, 2)
    rollback(registry.store, NAME, "ann", "off")
    remove(registry, NAME, "ann", "old", {}, tmp_path, is_up=False)
    for scale in (1.0, 2.0):
        register(registry, "fp32", scale)
    assert begin(registry, 5).number > first.number + 1
