"""A retired version serves nobody; a removed one is gone, with all that nothing else refers to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from modelless.common.errors import InvalidInputError, NotFoundError
from modelless.variants.artifacts import ArtifactStore
from modelless.variants.making.builder import Builder, MadeVariant
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.recipe import parse_recipe
from modelless.variants.registry import removal
from modelless.variants.registry.promotion import begin_trial, promote, read_lines
from modelless.variants.registry.registry import Registry
from modelless.variants.registry.versions import TrialRules
from modelless.variants.store import HistoryRow, Store, VariantRow
from modelless.variants.store.rows import MADE
from modelless.variants.vocabulary import Engine, Precision, Variant
from tests.builders import ACCURACY, MODEL, TASK, tiny_bytes

NAME = "pixels/mean/fp32"


@pytest.fixture
def registry(store: Store, tmp_path: Path) -> Registry:
    """Three versions of one variant, and another that has the first one's bytes."""
    registry = Registry(store, ArtifactStore(tmp_path / "artifacts"))
    registry.add_task(TASK)
    registry.add_model(MODEL)
    for name, scale in (("fp32", 1.0), ("fp32", 2.0), ("fp32", 3.0), ("other", 1.0)):
        register(registry, name, scale)
    return registry


def register(registry: Registry, name: str, scale: float) -> Variant:
    return registry.register_variant(
        task="pixels", model="mean", name=name, precision=Precision.FP32,
        engine=Engine.ONNXRUNTIME_CPU, accuracy=ACCURACY, artifact=tiny_bytes(scale),
    )  # fmt: skip


def remove(
    registry: Registry, name: str, held: Mapping[str, str] | None = None, *, is_up: bool = False
) -> removal.Removed:
    work = registry.artifacts.folder / "making"
    return removal.remove(registry, name, "ann", "old", held or {}, work, is_up=is_up)


def there(registry: Registry) -> list[str]:
    return sorted(registry.catalog(with_retired=True).versions)


def serving(registry: Registry) -> list[str]:
    return sorted(variant.id for variant in registry.catalog().variants)


def kinds(registry: Registry) -> list[tuple[str, str]]:
    with registry.store.session() as session:
        rows = session.scalars(select(HistoryRow).order_by(HistoryRow.id))
        return [(row.kind, row.subject) for row in rows]


def test_a_version_goes_with_its_file(registry: Registry) -> None:
    sha256 = registry.variant(f"{NAME}@2").artifact_sha256
    found = remove(registry, f"{NAME}@2")
    assert (found.variants, found.files) == ((f"{NAME}@2",), 1)
    assert found.file_bytes == len(tiny_bytes(2.0))
    assert not registry.artifacts.locate(sha256).exists()
    assert there(registry) == [f"{NAME}@1", f"{NAME}@3", "pixels/mean/other@1"]
    assert kinds(registry) == [("removed", f"{NAME}@2")]


def test_a_file_that_another_has_stays(registry: Registry) -> None:
    sha256 = registry.variant("pixels/mean/other@1").artifact_sha256
    assert remove(registry, "pixels/mean/other").files == 0
    assert registry.artifacts.read(sha256) == tiny_bytes(1.0)


def test_a_file_that_is_registered_again_meanwhile_stays(registry: Registry) -> None:
    transaction, calls = registry.store.transaction, 0

    def counted() -> AbstractContextManager[Session]:
        nonlocal calls
        calls += 1
        if calls == 2:  # between the rows' end and the files'
            register(registry, "third", 2.0)
        return transaction()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry.store, "transaction", counted)
        assert remove(registry, f"{NAME}@2").files == 0
    registry.artifacts.fetch(registry.variant("pixels/mean/third@1").artifact_sha256)


def test_a_file_that_is_removed_while_it_is_registered_is_there(registry: Registry) -> None:
    transaction = registry.store.transaction

    def late() -> AbstractContextManager[Session]:
        registry.store.transaction = transaction  # type: ignore[method-assign]
        remove(registry, f"{NAME}@2")
        return transaction()

    registry.store.transaction = late  # type: ignore[method-assign, assignment]
    variant = register(registry, "third", 2.0)
    registry.artifacts.fetch(variant.artifact_sha256)


def test_a_removed_version_is_never_given_again(registry: Registry) -> None:
    remove(registry, f"{NAME}@3")
    assert register(registry, "fp32", 9.0).version == 4
    remove(registry, NAME)
    again = register(registry, "fp32", 1.0)
    assert again.id == f"{NAME}@5"
    assert serving(registry) == [f"{NAME}@5", "pixels/mean/other@1"]


def test_a_model_and_a_task_go_as_a_whole(registry: Registry) -> None:
    assert len(remove(registry, "pixels/mean").variants) == 4
    assert registry.models("pixels") == ()
    assert registry.tasks() == (TASK,)
    assert remove(registry, "pixels").variants == ()
    assert registry.tasks() == ()
    assert [name for _, name in kinds(registry)][-1] == "pixels"


def test_what_a_promotion_left_behind_is_forgotten_by_rollback(registry: Registry) -> None:
    for version in (2, 3):
        promote(registry.store, f"{NAME}@{version}", "ann", "on")
    remove(registry, f"{NAME}@2")
    assert read_lines(registry.store).by_name[NAME].earlier == (1,)


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        (f"{NAME}@1", {}, f"current one.*modelless promote {NAME}@3.*modelless remove {NAME}"),
        (
            f"{NAME}@2",
            {"held": {f"{NAME}@2": "worker w1"}},
            f"loaded by worker w1.*modelless retire {NAME}",
        ),
        (
            "pixels/mean/other",
            {"is_up": True},
            "does not serve.*modelless retire pixels/mean/other",
        ),
        ("pixels", {"is_up": True}, "modelless retire pixels/mean"),
    ],
)
def test_what_is_in_use_stays(
    registry: Registry, name: str, more: dict[str, Any], said: str
) -> None:
    before = there(registry)
    with pytest.raises(InvalidInputError, match=f"(?s)in use.*{said}"):
        remove(registry, name, **more)
    assert (there(registry), kinds(registry)) == (before, [])


def test_what_is_on_trial_stays(registry: Registry) -> None:
    begin_trial(registry.store, f"{NAME}@2", 0.05, TrialRules(), "ann", "a try")
    for name in (f"{NAME}@2", NAME, "pixels"):
        with pytest.raises(InvalidInputError, match=f"canary.*modelless rollback {NAME}"):
            remove(registry, name)
    assert remove(registry, f"{NAME}@3").variants == (f"{NAME}@3",)


@pytest.mark.parametrize("name", ["pixles", "pixels/meen", "pixels/mean/fp23", f"{NAME}@9"])
def test_what_is_not_there(registry: Registry, name: str) -> None:
    for work in (remove, lambda r, n: removal.retire(r, n, "ann", "", undo=False)):
        with pytest.raises((NotFoundError, InvalidInputError)):
            work(registry, name)
    assert len(there(registry)) == 4


def test_what_is_retired_serves_nobody_until_it_is_taken_back(registry: Registry) -> None:
    assert removal.retire(registry, NAME, "ann", "old", undo=False) == (NAME,)
    assert serving(registry) == ["pixels/mean/other@1"]
    assert len(there(registry)) == 4
    with pytest.raises(NotFoundError, match=r"fp32@1 is not served: it was retired.*--undo"):
        registry.resolve(NAME)
    with pytest.raises(InvalidInputError, match="one that serves"):
        removal.retire(registry, NAME, "ann", "old", undo=False)
    assert removal.retire(registry, "pixels", "ann", "", undo=True) == (NAME,)
    assert serving(registry) == [f"{NAME}@1", "pixels/mean/other@1"]
    assert kinds(registry) == [("retired", NAME), ("reinstated", NAME)]


def test_what_is_retired_is_neither_promoted_nor_tried_until_it_is_taken_back(
    registry: Registry,
) -> None:
    removal.retire(registry, NAME, "ann", "old", undo=False)
    new = register(registry, "fp32", 4.0)
    for version in (2, new.version):
        with pytest.raises(InvalidInputError, match=f"promote.*modelless retire --undo {NAME}"):
            promote(registry.store, f"{NAME}@{version}", "ann", "on")
        with pytest.raises(InvalidInputError, match=f"canary.*modelless retire --undo {NAME}"):
            begin_trial(registry.store, f"{NAME}@{version}", 0.05, TrialRules(), "ann", "a try")
    assert serving(registry) == ["pixels/mean/other@1"]
    removal.retire(registry, NAME, "ann", "", undo=True)
    promote(registry.store, new.id, "ann", "on")
    assert serving(registry) == [new.id, "pixels/mean/other@1"]


def test_a_new_version_of_what_is_retired_is_retired(registry: Registry) -> None:
    removal.retire(registry, NAME, "ann", "old", undo=False)
    new = register(registry, "fp32", 4.0)
    with registry.store.session() as session:
        assert session.get_one(VariantRow, new.id).retired_at is not None
    assert register(registry, "another", 4.0).id in serving(registry)


def test_with_a_source_go_the_results_of_its_steps(registry: Registry) -> None:
    chains = parse_recipe({"variants": {"x": ["fp16"]}})
    folder = registry.artifacts.folder
    source = tiny_bytes(7.0)
    (made,) = Builder(folder / "making", registry.artifacts).build(
        chains, source, CalibrationData()
    )
    assert isinstance(made, MadeVariant)
    registry.artifacts.put(source)
    variant = register(registry, "made", 8.0)
    details = {"lineage": asdict(made.lineage), "calibration_file_sha256": None}
    with registry.store.transaction() as session:
        session.add(HistoryRow(kind=MADE, subject=variant.id, reason="", details=details))
    found = remove(registry, "pixels")
    # The versions; and what was made, its source, that in canonical form and as FP16.
    assert found.files == 3 + 4
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_version_alone_and_what_is_on_trial_are_not_retired(registry: Registry) -> None:
    with pytest.raises(InvalidInputError, match="a variant, a model or a task"):
        removal.retire(registry, f"{NAME}@1", "ann", "", undo=False)
    begin_trial(registry.store, f"{NAME}@2", 0.05, TrialRules(), "ann", "a try")
    with pytest.raises(InvalidInputError, match=f"canary.*modelless rollback {NAME}"):
        removal.retire(registry, "pixels", "ann", "", undo=False)
    assert len(serving(registry)) == 2


def test_what_is_retired_is_removed_while_a_cluster_runs_once_nothing_holds_it(
    registry: Registry,
) -> None:
    removal.retire(registry, NAME, "ann", "old", undo=False)
    with pytest.raises(InvalidInputError, match="loaded by gateway g"):
        remove(registry, NAME, {f"{NAME}@1": "gateway g"}, is_up=True)
    assert len(remove(registry, NAME, is_up=True).variants) == 3
