"""The zoo's entries whose variants are made: what they hold, and that their items are right."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from modelless.common.errors import EnvironmentUnfitError, IntegrityError, InvalidInputError
from modelless.variants.decoding import decode_texts
from modelless.variants.graphs.inspection import check_signature, inspect_onnx
from modelless.variants.making.recipe import parse_recipe
from modelless.variants.making.session import Session
from modelless.variants.metrics import find_metric
from modelless.variants.validation import ValidationSet, open_validation_set
from modelless.variants.validation.measuring import measure_accuracy
from modelless.variants.vocabulary import Model
from modelless.variants.zoo import MadeEntry, find_entry
from modelless.variants.zoo.catalog import package_file

ENTRIES = ("printed-lines", "voice-activity", "digits")


class Single:
    """A graph as measuring takes it."""

    def __init__(self, onnx_bytes: bytes) -> None:
        self._session = Session(onnx_bytes)

    def infer(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._session.run(inputs)


def entry_of(name: str) -> MadeEntry:
    entry = find_entry(name)
    assert isinstance(entry, MadeEntry)
    return entry


@cache
def models_of(name: str) -> list[tuple[Model, bytes]]:
    """An entry's models; the test is skipped, and says so, without the packages they are in."""
    try:
        return list(entry_of(name).models())
    except EnvironmentUnfitError as error:
        pytest.skip(str(error))


def items_of(entry: MadeEntry, folder: Path, count: int, seed: int = 0) -> ValidationSet:
    try:
        entry.write_items(folder, count, seed)
    except EnvironmentUnfitError as error:
        pytest.skip(str(error))
    metric = find_metric(entry.task.accuracy_metric, entry.task)
    return open_validation_set(folder, entry.task, metric.expects)


@pytest.mark.parametrize("name", ENTRIES)
def test_items_are_drawn_by_rule(name: str, tmp_path: Path) -> None:
    entry = entry_of(name)
    assert (entry.name, entry.task.name) == (name, name)
    one, again, other = (
        items_of(entry, tmp_path / f"{place}", 20, seed) for place, seed in enumerate((0, 0, 1))
    )
    assert one.sha256 == again.sha256 != other.sha256
    assert len({str(one.item(index).expected) for index in range(20)}) > 1


@pytest.mark.parametrize(
    ("name", "least", "items"),
    [
        pytest.param("printed-lines", 60.0, 40, marks=pytest.mark.slow),
        ("voice-activity", 80.0, 100),
        ("digits", 90.0, 500),
    ],
)
def test_models_have_the_signature_and_are_right(
    name: str, least: float, items: int, tmp_path: Path
) -> None:
    entry = entry_of(name)
    drawn = items_of(entry, tmp_path / "items", items)
    metric = find_metric(entry.task.accuracy_metric, entry.task)
    models = models_of(entry.name)
    assert len(models) * len(parse_recipe(entry.recipe).chains) >= 3
    for _, onnx_bytes in models:
        check_signature(inspect_onnx(onnx_bytes), entry.task)
        found = measure_accuracy(Single(onnx_bytes), drawn, metric)
        assert found.accuracy.percent > least


def test_items_of_voice_activity_share_batches_and_silence_after_them_changes_nothing() -> None:
    entry = entry_of("voice-activity")
    (_, onnx_bytes), *_ = models_of(entry.name)
    items = [item[:8192] for item, _ in entry.draw(np.random.default_rng(3), 9) if len(item) > 8192]
    session = Session(onnx_bytes)
    alone = [session.run({"audio": item[None]})["probabilities"][0] for item in items]
    together = session.run({"audio": np.stack(items)})["probabilities"]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    padded = session.run({"audio": np.pad(np.stack(items), ((0, 0), (0, 2048)))})["probabilities"]
    assert (padded.argmax(1) == together.argmax(1)).mean() > 0.8


def test_a_recogniser_reads_what_its_original_reads() -> None:
    entry = entry_of("printed-lines")
    task = entry.task
    assert task.decoding is not None
    path = package_file("rapidocr", "models/PP-OCRv6_rec_small.onnx", "")
    original = Session(path.read_bytes())
    published = inspect_onnx(path.read_bytes())
    labels = ("", *published.metadata["character"].removesuffix("\n").split("\n"), " ")
    (cut,) = (b for model, b in models_of(entry.name) if model.name == "pp-ocrv6-small")
    session = Session(cut)
    same = []
    for item, _ in entry.draw(np.random.default_rng(5), 12):
        pixels = (item[None, :, :, ::-1].astype(np.float32) / 127.5 - 1.0).transpose(0, 3, 1, 2)
        (scores,) = original.run({original.inputs[0]: pixels}).values()
        (wanted,) = decode_texts(scores, task.decoding, labels[: scores.shape[2]])
        answered = session.run({"image": item[None]})["scores"]
        same.append(decode_texts(answered, task.decoding, task.labels) == (wanted,))
    assert np.mean(same) > 0.9


def test_narrow_lines_take_fewer_steps() -> None:
    models = {model.name: onnx_bytes for model, onnx_bytes in models_of("printed-lines")}
    item, _ = next(entry_of("printed-lines").draw(np.random.default_rng(0), 1))
    whole, narrow, narrower = (
        Session(models[f"pp-ocrv6-small{suffix}"]).run({"image": item[None]})["scores"].shape[1]
        for suffix in ("", "-narrow", "-narrower")
    )
    assert (narrow, narrower) == pytest.approx((0.8 * whole, 0.65 * whole), abs=1.0)


def test_there_are_no_more_digits_than_there_are() -> None:
    with pytest.raises(InvalidInputError, match=r"count.*up to 898"):
        next(iter(entry_of("digits").draw(np.random.default_rng(0), 899)))


def test_a_file_that_is_missing_or_another_is_refused() -> None:
    with pytest.raises(EnvironmentUnfitError, match=r"no\.such.*pip install x"):
        package_file("no.such", "file", "pip install x")
    with pytest.raises(EnvironmentUnfitError, match=r"nothing\.onnx of package numpy"):
        package_file("numpy", "nothing.onnx", "pip install x")
    with pytest.raises(IntegrityError, match="expected 00"):
        package_file("numpy", "__init__.py", "pip install x", "00")
