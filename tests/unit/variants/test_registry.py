"""Tasks, models, variants and versions."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from modelless.common.errors import (
    IntegrityError,
    InvalidInputError,
    ModellessError,
    NotFoundError,
    StoreError,
)
from modelless.variants.artifacts import ArtifactStore
from modelless.variants.graphs.graph_facts import GraphFacts, read_graph_facts
from modelless.variants.paths import parse_path
from modelless.variants.registry.registry import Registry, open_registry
from modelless.variants.store import ArtifactRow, HistoryRow, Store, VariantRow
from modelless.variants.vocabulary import Accuracy, Engine, Precision, Provenance, Variant
from tests.builders import (
    ACCURACY,
    MODEL,
    TASK,
    tiny_bytes,
    tiny_model,
    variant_of,
    with_custom_operator,
)

BETTER = Accuracy(60.0, "top-1", Provenance.PUBLISHED, "a page")


@pytest.fixture
def registry(store: Store, tmp_path: Path) -> Registry:
    registry = Registry(store, ArtifactStore(tmp_path / "artifacts"))
    registry.add_task(TASK)
    registry.add_model(MODEL)
    return registry


def register(registry: Registry, scale: float = 1.0, **changes: Any) -> Variant:
    fields: dict[str, Any] = {
        "task": "pixels",
        "model": "mean",
        "name": "fp32",
        "precision": Precision.FP32,
        "engine": Engine.ONNXRUNTIME_CPU,
        "accuracy": ACCURACY,
        "artifact": tiny_bytes(scale),
        **changes,
    }
    return registry.register_variant(**fields)


def ids(variants: tuple[Variant, ...]) -> list[str]:
    return [variant.id for variant in variants]


class TestAdding:
    def test_what_goes_in_comes_out(self, registry: Registry) -> None:
        variant = register(registry, resolution_px=8)
        expected = dataclasses.replace(
            variant_of(tiny_bytes()), resolution_px=8, parameter_count=12, multiply_adds=12
        )
        assert variant == expected
        assert registry.tasks() == (TASK,)
        assert registry.models("pixels") == (MODEL,)
        assert registry.variants() == (variant,)
        assert registry.variant("pixels/mean/fp32@1") == variant
        assert registry.artifacts.read(variant.artifact_sha256) == tiny_bytes()

    def test_adding_the_same_again_changes_nothing(self, registry: Registry) -> None:
        registry.add_task(TASK)
        registry.add_model(MODEL)
        assert registry.tasks() == (TASK,)
        assert registry.models("pixels") == (MODEL,)

    def test_adding_another_of_the_same_name_is_refused(self, registry: Registry) -> None:
        with pytest.raises(InvalidInputError, match=r"task 'pixels': labels: got \('x',\)"):
            registry.add_task(dataclasses.replace(TASK, labels=("x",)))
        with pytest.raises(InvalidInputError, match="model pixels/mean: family"):
            registry.add_model(dataclasses.replace(MODEL, family="other"))
        assert registry.tasks() == (TASK,)

    def test_a_model_or_variant_of_nothing(self, registry: Registry) -> None:
        with pytest.raises(NotFoundError, match=r"No task is called 'pixel'\. Did you mean pixels"):
            registry.add_model(dataclasses.replace(MODEL, task="pixel"))
        with pytest.raises(NotFoundError, match="No model of task 'pixels' is called 'mode'"):
            register(registry, model="mode")
        with pytest.raises(InvalidInputError, match=r"variant\.name"):
            register(registry, name="FP 32")

    def test_a_file_of_another_signature_is_refused(self, registry: Registry) -> None:
        registry.add_task(
            dataclasses.replace(
                TASK, name="grey", inputs=(dataclasses.replace(TASK.inputs[0], shape=(-1, 8)),)
            )
        )
        registry.add_model(dataclasses.replace(MODEL, task="grey"))
        with pytest.raises(InvalidInputError, match="shape of the model's input 'image'"):
            register(registry, task="grey")

    @pytest.mark.parametrize(
        "artifact",
        [b"no model", tiny_bytes()[:-9], with_custom_operator("evil").SerializeToString()],
        ids=["no-onnx", "truncated", "custom-operator"],
    )
    def test_a_refused_file_leaves_nothing(
        self, registry: Registry, artifact: bytes, tmp_path: Path
    ) -> None:
        with pytest.raises(IntegrityError):
            register(registry, artifact=artifact)
        assert registry.variants() == ()
        assert not (tmp_path / "artifacts").exists()


class TestVersions:
    def test_other_bytes_are_the_next_version(self, registry: Registry) -> None:
        first, second = register(registry, 1.0), register(registry, 2.0)
        assert ids((first, second)) == ["pixels/mean/fp32@1", "pixels/mean/fp32@2"]
        assert registry.variants() == (second,)
        assert registry.variants(latest_only=False) == (first, second)

    def test_the_same_bytes_keep_their_version(self, registry: Registry) -> None:
        first = register(registry, 1.0)
        register(registry, 2.0)
        assert register(registry, 1.0) == first
        assert len(registry.variants(latest_only=False)) == 2

    def test_the_same_bytes_for_another_engine_are_the_next_version(
        self, registry: Registry, tmp_path: Path
    ) -> None:
        first = register(registry)
        second = register(registry, engine=Engine.OPENVINO)
        assert ids((first, second)) == ["pixels/mean/fp32@1", "pixels/mean/fp32@2"]
        assert (first.engine, second.engine) == (Engine.ONNXRUNTIME_CPU, Engine.OPENVINO)
        assert registry.variants() == (second,)
        assert register(registry) == first
        assert register(registry, engine=Engine.OPENVINO) == second
        assert sum(path.is_file() for path in (tmp_path / "artifacts").rglob("*")) == 1

    def test_accuracies_may_differ_between_engines(self, registry: Registry) -> None:
        first = register(registry)
        second = register(registry, engine=Engine.OPENVINO, accuracy=BETTER)
        assert (first.accuracy, second.accuracy) == (ACCURACY, BETTER)
        with pytest.raises(InvalidInputError, match="revise_accuracy"):
            register(registry, engine=Engine.OPENVINO)

    def test_two_names_with_two_engines_live_side_by_side(self, registry: Registry) -> None:
        one = register(registry, name="fp32-ort")
        other = register(registry, name="fp32-ov", engine=Engine.OPENVINO)
        assert registry.resolve("pixels/mean").variants == (one, other)

    def test_the_same_bytes_under_two_names_are_stored_once(
        self, registry: Registry, tmp_path: Path
    ) -> None:
        register(registry, name="a")
        register(registry, name="b")
        assert ids(registry.variants()) == ["pixels/mean/a@1", "pixels/mean/b@1"]
        assert len([path for path in tmp_path.rglob("artifacts/*/*") if path.is_file()]) == 1

    def test_the_same_bytes_with_other_facts_are_refused(self, registry: Registry) -> None:
        register(registry)
        with pytest.raises(InvalidInputError, match="precision: got 'int8'"):
            register(registry, precision=Precision.INT8)
        with pytest.raises(InvalidInputError, match="revise_accuracy") as refused:
            register(registry, accuracy=BETTER)
        assert "Accuracy(" not in str(refused.value)  # only what differs, in plain words
        assert f"'accuracy.percent': {BETTER.percent}" in str(refused.value)

    def test_accuracy_can_be_revised_and_the_reason_is_kept(self, registry: Registry) -> None:
        variant = register(registry)
        revised = registry.revise_accuracy(variant.id, BETTER, "the page was found")
        assert revised == dataclasses.replace(variant, accuracy=BETTER)
        assert registry.variants() == (revised,)
        with registry.store.session() as session:
            row = session.scalars(select(HistoryRow)).one()
        assert (row.subject, row.reason) == (variant.id, "the page was found")
        assert row.details["before"]["percent"] == ACCURACY.percent

    def test_registering_at_once_gives_each_its_own_version(self, registry: Registry) -> None:
        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda n: register(registry, 1.0 + n % 6), range(12)))
        assert sorted({variant.version for variant in done}) == [1, 2, 3, 4, 5, 6]
        assert len({(v.version, v.artifact_sha256) for v in done}) == 6


class TestResolving:
    @pytest.fixture(autouse=True)
    def _variants(self, registry: Registry) -> None:
        registry.add_model(dataclasses.replace(MODEL, name="median"))
        for scale, model, name in (
            (1.0, "mean", "fp32"),
            (2.0, "mean", "fp32"),
            (3.0, "mean", "int8"),
            (4.0, "median", "fp32"),
        ):
            register(registry, scale, model=model, name=name)

    @pytest.mark.parametrize(
        ("path", "version", "expected"),
        [
            ("pixels", None, ["mean/fp32@1", "mean/int8@1", "median/fp32@1"]),
            ("pixels/mean", None, ["mean/fp32@1", "mean/int8@1"]),
            ("pixels/mean/fp32", None, ["mean/fp32@1"]),
            ("pixels/mean/fp32@2", None, ["mean/fp32@2"]),
            ("pixels/mean/fp32", "2", ["mean/fp32@2"]),
            ("pixels/mean/fp32@2", 2, ["mean/fp32@2"]),
            ("pixels/mean", "", ["mean/fp32@1", "mean/int8@1"]),
        ],
    )
    def test_paths(
        self, registry: Registry, path: str, version: str | int | None, expected: list[str]
    ) -> None:
        scope = registry.resolve(path, version)
        assert scope.task == TASK
        assert ids(scope.variants) == [f"pixels/{name}" for name in expected]

    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("pixles", ["'pixles'", "Did you mean", "pixels"]),
            ("pixels/meen", ["'meen'", "mean", "median"]),
            ("pixels/mean/int4", ["'int4'", "Did you mean", "int8", "fp32"]),
            ("pixels/mean/fp32@9", ["version", "'9'", "1, 2"]),
        ],
    )
    def test_unknown_names_list_what_there_is(
        self, registry: Registry, path: str, words: list[str]
    ) -> None:
        for ask in (registry.resolve, registry.variant):
            if ask == registry.variant and path.count("/") < 2:
                continue
            with pytest.raises(NotFoundError) as caught:
                ask(path)
            assert [word for word in words if word not in str(caught.value)] == []

    @pytest.mark.parametrize("path", ["pixels", "pixels/mean"], ids=["task", "model"])
    def test_a_variant_is_named_in_full(self, registry: Registry, path: str) -> None:
        with pytest.raises(InvalidInputError, match="task/model/variant@version"):
            registry.variant(path)


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("", None),
        ("/", None),
        ("a//b", None),
        ("a/b/c/d", None),
        ("a@1", None),
        ("a/b@1", None),
        ("a/b/c@", None),
        ("a/b/c@0", None),
        ("a/b/c@-1", None),
        ("a/b/c@1.5", None),
        ("a/b/c@\u0661", None),
        ("a/b/c@1@2", None),
        ("a/b/c@99999999999", None),
        ("../etc/passwd", None),
        ("A/b/c", None),
        ("a/b c", None),
        ("a" * 65, None),
        ("a", "1"),
        ("a/b", 1),
        ("a/b/c", "x"),
        ("a/b/c", True),
        ("a/b/c@1", 2),
        (None, None),
    ],
)
def test_malformed_paths(path: Any, version: Any) -> None:
    with pytest.raises(InvalidInputError):
        parse_path(path, version)


@pytest.mark.parametrize("path", ["a", "a/b", "a/b/c", "a/b/c@12"])
def test_paths_are_written_as_they_are_read(path: str) -> None:
    assert str(parse_path(path)) == path


class TestHome:
    def test_it_is_made_and_found_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = tmp_path / "a ?#% home"
        monkeypatch.setenv("MODELLESS_HOME", str(home))
        monkeypatch.delenv("MODELLESS_STORE_URL", raising=False)
        first = open_registry()
        first.add_task(TASK)
        first.close()
        again = open_registry(home)
        assert again.tasks() == (TASK,)
        again.close()
        assert (home / "store.db").is_file()

    def test_the_store_can_be_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MODELLESS_STORE_URL", f"sqlite:///{tmp_path}/other.db")
        open_registry(tmp_path / "home").close()
        assert (tmp_path / "other.db").is_file()

    def test_a_file_in_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "home").write_text("")
        with pytest.raises(StoreError, match="MODELLESS_HOME"):
            open_registry(tmp_path / "home")

    def test_an_unknown_engine_in_the_store(self, registry: Registry) -> None:
        register(registry)
        with registry.store.transaction() as session:
            session.execute(text("UPDATE variants SET engine = 'slide-rule'"))
        with pytest.raises(StoreError, match="newer modelless"):
            registry.variants()

    def test_a_store_without_anything_says_what_to_do(self, tmp_path: Path) -> None:
        registry = open_registry(tmp_path)
        with pytest.raises(NotFoundError, match="modelless zoo add"):
            registry.models("imagenet")
        with pytest.raises(ModellessError):
            registry.resolve("imagenet")
        registry.close()


class TestGraphFacts:
    def test_counts_that_were_unknown_are_no_other_facts(self, registry: Registry) -> None:
        """A modelless that counts more than the one that registered a file before."""
        first = register(registry)
        with registry.store.transaction() as session:
            session.execute(text("UPDATE variants SET multiply_adds = NULL, parameter_count = 11"))
        again = register(registry)
        assert again == dataclasses.replace(first, multiply_adds=None, parameter_count=11)

    def test_registered_variants_carry_them(self, registry: Registry) -> None:
        variant = register(registry, resolution_px=8)
        facts = registry.graph_facts(variant)
        assert facts == read_graph_facts(tiny_model(), resolution_px=8)
        assert facts.activation_bytes == 4 * (3 * 8 * 8 + 3 + 4)
        registry.artifacts = ArtifactStore(registry.artifacts.folder / "elsewhere")
        assert registry.graph_facts(variant) == facts  # the file is not needed

    @pytest.mark.parametrize("kept", [None, '{"reader": 0}'])
    def test_what_is_absent_or_outdated_is_read_and_kept(
        self, registry: Registry, kept: str | None
    ) -> None:
        variant = register(registry)
        facts = registry.graph_facts(variant)
        with registry.store.transaction() as session:
            session.execute(text("UPDATE variants SET graph_facts = :kept"), {"kept": kept})
        assert registry.graph_facts(variant) == facts
        with registry.store.session() as session:
            row = session.get_one(VariantRow, variant.id)
            assert GraphFacts.of_document(row.graph_facts or {}) == facts

    def test_a_store_that_cannot_be_written_still_gives_them(
        self, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        variant = register(registry)
        with registry.store.transaction() as session:
            session.execute(text("UPDATE variants SET graph_facts = NULL"))

        def refuse() -> None:
            raise StoreError("read-only")

        monkeypatch.setattr(registry.store, "transaction", refuse)
        assert registry.graph_facts(variant).multiply_adds == 12

    def test_an_unknown_variant(self, registry: Registry) -> None:
        with pytest.raises(NotFoundError):
            registry.graph_facts(variant_of(tiny_bytes()))

    def test_a_file_that_is_no_onnx(self, registry: Registry) -> None:
        variant = register(registry)
        no_graph = registry.artifacts.put(b"no graph")
        with registry.store.transaction() as session:
            session.add(ArtifactRow(sha256=no_graph, bytes=8))
            session.flush()
            row = session.get_one(VariantRow, variant.id)
            row.artifact_sha256, row.graph_facts = no_graph, None
        with pytest.raises(IntegrityError, match="pixels/mean/fp32@1: it is not an ONNX model"):
            registry.graph_facts(variant)
