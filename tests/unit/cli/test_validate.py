"""``modelless validate``, ``variants``, ``register --validation``, and what is not served."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sqlalchemy import delete, select

from modelless.common.errors import NotFoundError
from modelless.controller.config import Settings
from modelless.controller.control.feedback import FeedbackAccuracies
from modelless.controller.dispatch.trials import FeedbackCounts
from modelless.controller.history.feedback import write_feedback
from modelless.controller.live.knowledge import read_knowledge
from modelless.profiler.measure.records import Records
from modelless.variants.registry.outcomes import latest_outcomes
from modelless.variants.registry.registry import open_registry
from modelless.variants.store import HistoryRow, MeasurementRow
from modelless.variants.validation import measuring
from modelless.variants.vocabulary import Accuracy, Provenance

from .conftest import Run
from .tiny import measurement, tiny_bytes

IDS = tuple(f"pixels/mean/{name}@1" for name in ("small", "medium", "large"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """200 labelled pictures; the tiny models answer ``blue`` (3), which is right for 150."""
    pixels = np.random.default_rng(0).integers(1, 255, (200, 2, 2, 3), np.uint8)
    path = tmp_path / "set.npz"
    np.savez(path, image=pixels, labels=[3] * 150 + [0] * 50)
    return path


def accuracies(home: Path) -> dict[str, Accuracy]:
    """What the registry knows."""
    with closing(open_registry(home)) as registry:
        return {variant.id: variant.accuracy for variant in registry.variants()}


def history(home: Path, kind: str) -> list[HistoryRow]:
    """Rows of the history of one kind."""
    with closing(open_registry(home)) as registry, registry.store.session() as session:
        query = select(HistoryRow).where(HistoryRow.kind == kind).order_by(HistoryRow.id)
        return list(session.scalars(query))


def test_accuracy_no_better_than_guessing_is_remarked_on(
    run: Run, registered: Path, data: Path, tmp_path: Path
) -> None:
    with np.load(data) as right:
        np.savez(tmp_path / "other.npz", image=right["image"], labels=(right["labels"] + 1) % 4)
    ran = run("validate", "pixels", "--data", tmp_path / "other.npz")
    assert ran.code == 0, ran.err
    assert "% is no better than guessing one of 4 classes: are the labels" in ran.err
    assert all(name in ran.err for name in IDS)


def test_accuracy_is_measured_and_stored_with_its_history(
    run: Run, registered: Path, data: Path
) -> None:
    ran = run("validate", "pixels", "--data", data, "--json")
    assert ran.code == 0, ran.err
    found = ran.document
    assert (found["metric"], found["validation_set"]["items"]) == ("top-1", 200)
    assert [row["accuracy"] for row in found["variants"]] == [75.0] * 3
    assert {row["stored"] for row in found["variants"]} == {True}
    assert found["variants"][0]["against_best"] is None
    assert found["variants"][1]["against_best"]["p_value"] == 1.0
    for accuracy in accuracies(registered).values():
        assert (accuracy.percent, accuracy.sample_count) == (75.0, 200)
        assert accuracy.provenance is Provenance.MEASURED
        assert accuracy.low_percent == pytest.approx(68.57, abs=0.01)
    rows = history(registered, "accuracy-revised")
    assert sorted(row.subject for row in rows) == sorted(IDS)
    assert rows[0].details["before"]["provenance"] == "published"
    assert rows[0].details["measured"]["set_sha256"] == found["validation_set"]["sha256"]


def test_a_table_is_shown(run: Run, registered: Path, data: Path) -> None:
    ran = run("validate", "pixels/mean/small", "--data", data)
    assert ran.code == 0
    assert "75.0 % measured (68.6 to 80.5)" in ran.out
    assert "validating 200/200" in ran.err


def test_another_metric_is_measured_but_not_stored(run: Run, registered: Path, data: Path) -> None:
    ran = run("validate", "pixels/mean/small", "--data", data, "--metric", "macro-f1", "--json")
    assert ran.document["variants"][0]["stored"] is False
    assert "not stored, as the task's metric is top-1" in ran.err
    assert accuracies(registered)[IDS[0]].provenance is Provenance.PUBLISHED
    (row,) = history(registered, "accuracy-measured")
    assert (row.subject, row.details["measured"]["metric"]) == (IDS[0], "macro-f1")


def test_fewer_items_do_not_replace_more(run: Run, registered: Path, data: Path) -> None:
    run("validate", "pixels/mean/small", "--data", data, "--sample", 50)
    assert accuracies(registered)[IDS[0]].sample_count == 50
    run("validate", "pixels/mean/small", "--data", data)
    ran = run("validate", "pixels/mean/small", "--data", data, "--sample", 50)
    assert "not stored, as 200 items of the same set" in ran.err
    assert accuracies(registered)[IDS[0]].sample_count == 200


def test_a_precision_that_the_set_cannot_give_says_what_it_takes(
    run: Run, registered: Path, data: Path
) -> None:
    ran = run("validate", "pixels/mean/small", "--data", data, "--precision", 1)
    assert ran.code == 0
    assert "200 items leave +-6.0 points; +-1 take about 7201: pixels/mean/small@1" in ran.err
    ran = run("validate", "pixels/mean/small", "--data", data, "--precision", 9, "--json")
    assert ran.document["variants"][0]["items"] == 128  # the first look, at 100 items or more


def test_agreement_needs_a_reference(run: Run, registered: Path, data: Path) -> None:
    words = ("validate", "pixels", "--data", data, "--metric", "agreement")
    ran = run(*words, "--reference", "pixels/mean/large", "--json")
    assert [row["accuracy"] for row in ran.document["variants"]] == [100.0] * 3
    assert accuracies(registered)[IDS[0]].metric == "top-1"
    assert run(*words).code == 2
    assert run(*words, "--reference", "pixels").code == 2
    assert run("validate", "pixels", "--data", data, "--reference", IDS[0]).code == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("pixel", "--data", "set.npz"), 3, "Did you mean pixels"),
        (("pixels", "--data", "none.npz"), 2, "none.npz"),
        (("pixels", "--data", "set.npz", "--metric", "bleu"), 3, "macro-f1"),
        (("pixels", "--data", "set.npz", "--metric", "mae"), 2, "outputs of task"),
        (("pixels", "--data", "set.npz", "--sample", "0"), 2, "sample"),
        (("pixels", "--data", "set.npz", "--precision", "0"), 2, "precision"),
        (("pixels",), 2, "--data"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_stored(
    run: Run, registered: Path, data: Path, words: Any, code: int, said: str
) -> None:
    before = accuracies(registered)
    ran = run("validate", *words)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert accuracies(registered) == before


def test_a_damaged_variant_does_not_keep_the_others(run: Run, registered: Path, data: Path) -> None:
    with closing(open_registry(registered)) as registry:
        sha256 = registry.variant(IDS[1]).artifact_sha256
    (path,) = (
        p for p in registered.rglob("*") if p.is_file() and sha256 in str(p).replace("/", "")
    )
    path.chmod(0o644)
    path.write_bytes(b"damage")
    ran = run("validate", "pixels", "--data", data, "--json")
    assert (ran.code, list(ran.document["failed"])) == (1, [IDS[1]])
    found = accuracies(registered)
    assert [found[name].sample_count for name in IDS] == [200, None, 200]
    assert run("validate", "pixels/mean/medium", "--data", data).code == 5


def test_what_was_measured_before_an_interruption_is_kept(
    run: Run, registered: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = measuring.measure_accuracy
    calls = []

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*args, **options)

    monkeypatch.setattr(
        "modelless.controller.usecases.registry.validating.measure_accuracy", interrupted
    )
    ran = run("validate", "pixels", "--data", data)
    assert ran.code == 130
    assert "1 of 3 variants were measured; that is kept" in ran.err
    measured = [a for a in accuracies(registered).values() if a.sample_count == 200]
    assert len(measured) == 1
    assert len(history(registered, "accuracy-revised")) == 1


def test_runs_at_the_same_time_leave_the_store_whole(
    run: Run, registered: Path, data: Path
) -> None:
    from modelless.controller.usecases.registry.validating import keep_measured
    from modelless.variants.metrics import find_metric
    from modelless.variants.validation import open_validation_set

    with closing(open_registry(registered)) as registry:
        task = registry.catalog().tasks["pixels"]
        metric = find_metric("top-1", task)
        items = open_validation_set(data, task, metric.expects)

        class Blue:
            def infer(self, inputs: Any) -> Any:
                return {"scores": np.tile([0, 0, 0, 1.0], (len(inputs["image"]), 1))}

        found = measuring.measure_accuracy(Blue(), items, metric)

    def keep() -> None:
        with closing(open_registry(registered)) as mine:
            for _ in range(5):
                for variant in mine.variants():
                    keep_measured(mine, variant, found, metric, "top-1")

    threads = [threading.Thread(target=keep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(accuracies(registered).values()) == {found.accuracy}
    assert len(history(registered, "accuracy-revised")) == 4 * 5 * 3
    with closing(open_registry(registered)) as registry:
        assert latest_outcomes(registry.store, IDS).keys() == set(IDS)


# -- register ---------------------------------------------------------------------------------


def test_registering_can_measure(run: Run, registered: Path, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(tiny_bytes(9.0))
    words = ("register", file, "-t", "pixels", "--model", "mine", "--name", "a",
             "--precision", "fp32", "--validation")  # fmt: skip
    ran = run(*words, data, "--json")
    assert ran.code == 0, ran.err
    assert (ran.document["accuracy"], ran.document["accuracy_provenance"]) == (75.0, "measured")
    assert "counts as 0" not in ran.err
    with closing(open_registry(registered)) as registry:
        assert "pixels/mine/a@1" in latest_outcomes(registry.store, ["pixels/mine/a@1"])
    before = accuracies(registered)
    file.write_bytes(tiny_bytes(10.0))
    for wrong in ((tmp_path / "none.npz",), (data, "--accuracy", 70, "--provenance", "published",
                  "--accuracy-source", "x")):  # fmt: skip
        assert run(*words, *wrong).code == 2
    assert accuracies(registered) == before


def test_a_trained_model_is_measured_as_its_maker_would(
    run: Run, home: Path, tmp_path: Path
) -> None:
    digits = load_digits()
    x, y = digits.data.astype(np.float32) / 16.0, digits.target
    trained = LogisticRegression(max_iter=200).fit(x[:1000], y[:1000])
    (tmp_path / "net.onnx").write_bytes(linear_model(trained.coef_, trained.intercept_))
    rows = [
        ",".join(map(str, [*item, label])) for item, label in zip(x[1000:], y[1000:], strict=True)
    ]
    heading = ",".join([*(f"p{number}" for number in range(64)), "label"])
    (tmp_path / "test.csv").write_text("\n".join([heading, *rows]))
    (tmp_path / "task.yaml").write_text(
        "name: digits\n"
        "inputs: [{name: x, datatype: FP32, shape: [-1, 64]}]\n"
        "outputs: [{name: scores, datatype: FP32, shape: [-1, 10]}]\n"
        "metric: macro-f1\n"
    )
    ran = run("register", "net.onnx", "--task-file", "task.yaml", "--model", "linear", "--name",
              "fp32", "--precision", "fp32", "--validation", "test.csv", "--json")  # fmt: skip
    assert ran.code == 0, ran.err
    expected = 100 * f1_score(y[1000:], trained.predict(x[1000:]), average="macro")
    assert ran.document["accuracy"] == pytest.approx(expected)
    assert ran.document["accuracy_low"] < expected < ran.document["accuracy_high"]
    found = run("validate", "digits", "--data", "test.csv", "--metric", "top-1", "--json").document
    right = 100 * float(np.mean(trained.predict(x[1000:]) == y[1000:]))
    assert found["variants"][0]["accuracy"] == pytest.approx(right)


def linear_model(weight: NDArray[Any], bias: NDArray[Any]) -> bytes:
    """Scores of classes, as an ONNX file."""
    tensors = [
        numpy_helper.from_array(weight.T.astype(np.float32), "weight"),
        numpy_helper.from_array(bias.astype(np.float32), "bias"),
    ]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "weight", "bias"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", weight.shape[1]])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", weight.shape[0]])],
        tensors,
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


# -- dominated --------------------------------------------------------------------------------


@pytest.fixture
def beaten(profiled: Path) -> Path:
    """A home where ``medium`` is profiled as slower than ``large``, which is more accurate."""
    with closing(open_registry(profiled)) as registry:
        records = Records(registry.store)
        for batch in (1, 2, 4, 8):
            records.add(measurement(IDS[1], batch, 80.0 * batch))
    return profiled


def test_dominated_variants_are_listed_with_what_beats_them(run: Run, beaten: Path) -> None:
    found = {
        row["variant"]: row for row in run("variants", "pixels", "--json").document["variants"]
    }
    assert found[IDS[1]]["dominated_by"] == {"cpu-1": IDS[2]}
    assert [found[name]["served"] for name in IDS] == [True, False, True]
    assert f"{IDS[2]} on cpu-1" in run("variants").out
    (beaten.parent / "all.yaml").write_text("serve_dominated: true\n")
    ran = run("variants", "pixels", "--config", beaten.parent / "all.yaml", "--json")
    assert {row["served"] for row in ran.document["variants"]} == {True}


def test_variants_without_a_profile_are_not_served(run: Run, registered: Path) -> None:
    found = run("variants", "--json").document["variants"]
    assert [(row["served"], row["profiled_on"]) for row in found] == [(False, [])] * 3


def test_dominated_variants_are_not_selected_unless_told(run: Run, beaten: Path) -> None:
    ran = run("select", "--task", "pixels", "--latency-ms", 200, "--json")
    assert {row["variant"] for row in ran.document["candidates"]} == {IDS[0], IDS[2]}
    assert list(ran.document["dominated"]) == [IDS[1]]
    assert f"{IDS[1]} is not served: it is dominated by {IDS[2]} on cpu-1" in ran.err
    ran = run("select", "--task", "pixels/mean/medium", "--latency-ms", 200)
    assert (ran.code, "serve_dominated: true" in ran.err) == (3, True)
    (beaten.parent / "all.yaml").write_text("serve_dominated: true\n")
    words = ("select", "--task", "pixels", "--config", beaten.parent / "all.yaml", "--json")
    assert len(run(*words).document["candidates"]) == 3


def test_dominated_variants_are_not_served_unless_told(beaten: Path) -> None:
    found = read_knowledge(beaten, Settings())
    assert [variant.id for variant in found.catalog.variants] == [IDS[2], IDS[0]]
    with pytest.raises(NotFoundError, match="is not served"):
        found.catalog.resolve("pixels/mean/medium")
    everything = read_knowledge(beaten, Settings(serve_dominated=True))
    assert len(everything.catalog.variants) == 3


def test_what_cannot_be_trusted_dominates_nothing(run: Run, profiled: Path) -> None:
    with closing(open_registry(profiled)) as registry:
        with registry.store.transaction() as session:
            session.execute(delete(MeasurementRow))
        records = Records(registry.store)
        records.add(measurement(IDS[1], 1, 80.0))
        records.add(measurement(IDS[2], 1, 1.0, trusted=False))
    assert {row["variant"] for row in run("variants", "--json").document["variants"]
            if row["dominated_by"]} == set()  # fmt: skip


def test_accuracies_of_two_sets_are_told_apart_and_renewed_on_one(
    run: Run, registered: Path, data: Path, tmp_path: Path
) -> None:
    with np.load(data) as arrays:
        np.savez(tmp_path / "other.npz", image=arrays["image"][:100], labels=arrays["labels"][:100])
    assert run("validate", "pixels/mean/small", "--data", data).code == 0
    ran = run("validate", "pixels/mean/medium", "--data", tmp_path / "other.npz")
    assert f"measured on another validation set, so not to be compared with these: {IDS[0]}" in (
        ran.err
    )
    told = run("variants", "pixels").err
    assert "accuracies of task pixels are of 2 validation sets" in told
    assert "modelless validate --task pixels --data PATH" in told
    ran = run("validate", "--task", "pixels", "--data", tmp_path / "other.npz", "--json")
    assert ran.code == 0, ran.err
    assert {row["variant"] for row in ran.document["variants"]} == set(IDS)
    assert len({each.set_name for each in accuracies(registered).values()}) == 1
    assert "validation sets" not in run("variants", "pixels").err


def test_a_task_is_validated_in_every_version(run: Run, registered: Path, data: Path) -> None:
    with closing(open_registry(registered)) as registry:
        first = registry.variant(IDS[0])
        registry.register_variant(
            task="pixels", model="mean", name="small", precision=first.precision,
            engine=first.engine, accuracy=first.accuracy, artifact=tiny_bytes(9.0),
        )  # fmt: skip
    of_scope = run("validate", "pixels", "--data", data, "--json").document["variants"]
    of_task = run("validate", "-t", "pixels", "--data", data, "--json").document["variants"]
    new = "pixels/mean/small@2"
    assert new not in {row["variant"] for row in of_scope}
    assert new in {row["variant"] for row in of_task}


@pytest.mark.parametrize("words", [(), ("pixels", "--task", "pixels")])
def test_what_to_validate_is_said_once(
    run: Run, registered: Path, data: Path, words: tuple[str, ...]
) -> None:
    ran = run("validate", *words, "--data", data)
    assert (ran.code, "SCOPE and --task" in ran.err) == (2, True)


def test_the_same_set_under_another_name_is_the_same(
    run: Run, registered: Path, data: Path
) -> None:
    assert run("validate", "pixels/mean/small", "--data", data).code == 0
    data.rename(data.with_name("renamed.npz"))
    assert run("validate", "pixels/mean/medium", "--data", data.with_name("renamed.npz")).code == 0
    assert "validation sets" not in run("variants", "pixels").err


def test_feedback_is_shown_beside_the_stated_accuracy_and_can_replace_it(
    run: Run, registered: Path, data: Path
) -> None:
    for ran in (
        run("validate", "pixels", "--feedback"),
        run("validate", "pixels", "--feedback", "--data", data),
        run("validate", "pixels"),
        run("validate", "pixels", "--feedback", "--sample", 5),
    ):
        assert (ran.code, "--feedback" in ran.err) == (2, True), ran.err
    measured = FeedbackAccuracies()
    measured.follow({IDS[0]: 88.0}, {})
    measured.add([FeedbackCounts(IDS[0], "shop", 900, 100), FeedbackCounts(IDS[1], "", 9, 1)], 0.0)
    measured.add([FeedbackCounts(IDS[0], "shop", 100, 100)], 1.0)
    measured.judge((), 1.0)
    write_feedback(registered, measured.documents())
    shown = run("variants", "pixels")
    assert all(text in shown.out for text in ("by feedback", "83.3 %", "demoted", "43.1 %"))
    rows = {row["variant"]: row for row in run("variants", "--json").document["variants"]}
    assert rows[IDS[0]]["feedback"]["tenants"]["shop"]["items"] == 1200
    assert rows[IDS[2]]["feedback"] is None
    ran = run("validate", "pixels", "--feedback")
    assert ran.code == 0, ran.err
    found = accuracies(registered)[IDS[0]]
    assert (found.percent, found.sample_count) == (50.0, 200)  # since it fell
    assert found.provenance is Provenance.MEASURED
    assert found.low_percent == pytest.approx(43.1, abs=0.1)
    assert accuracies(registered)[IDS[1]].source != found.source  # ten items are too few
    (row,) = history(registered, "accuracy-revised")
    assert row.reason == f"measured by feedback on 200 items of {IDS[0]}"
