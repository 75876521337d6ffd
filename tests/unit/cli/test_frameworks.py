"""Frameworks that somebody may have installed: from a trained model of theirs to a variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from modelless.variants.zoo.fashion_mnist import DATA, FashionMnist

from . import made_models
from .conftest import Run
from .tiny import labelled_pictures

ITEMS = 1000
HERE = made_models.__name__
QUICK = (
    "--engine",
    "onnxruntime-cpu",
    "--batches",
    1,
    "--budget",
    "1s",
    "--accept-noise",
    "--json",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Labelled pictures of Fashion-MNIST."""
    return labelled_pictures(tmp_path, ITEMS)


def written(folder: Path, chains: dict[str, list[Any]]) -> Path:
    """A recipe's file."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"variants": chains}))
    return path


@pytest.mark.filterwarnings("ignore")
def test_a_keras_network_is_registered_as_good_as_it_is(run: Run, data: Path) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    pytest.importorskip("tf2onnx", reason="tf2onnx is not installed")
    images, labels = FashionMnist().test_split()
    found = made_models.keras_clothes().predict(images[:ITEMS], verbose=0).argmax(1)
    wanted = 100.0 * float(np.mean(found == labels[:ITEMS]))
    assert wanted > 60.0
    np.savez(data.parent / "calibration.npz", image=images[-64:])
    recipe = written(data.parent, {"fp32": ["optimise"]})
    ran = run(
        "make", f"{HERE}:keras_clothes", "--framework", "tensorflow", "--task", "clothes",
        "--model", "keras", "--validation", data, "--calibration", data.parent / "calibration.npz",
        "--recipe", recipe, *QUICK,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.document["source"]["framework"] == "tensorflow"
    (row,) = ran.document["variants"]
    assert row["accuracy"] == pytest.approx(wanted, abs=0.2)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_pruned_network_is_fine_tuned_and_made_again(run: Run, data: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    source = data.parent / "net.onnx"
    source.write_bytes((DATA / "cnn-s-fp32.onnx").read_bytes())
    pruned = ["optimise", {"prune-magnitude": {"sparsity": 0.8}}]
    chains = {"sparse": pruned, "tuned": [*pruned, {"fine-tune": {"steps": 100}}]}
    ran = run(
        "make", source, "--task", "clothes", "--model", "net", "--validation", data,
        "--recipe", written(data.parent, chains), *QUICK,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    accuracy = {row["name"]: row["accuracy"] for row in ran.document["variants"]}
    assert accuracy["tuned"] > accuracy["sparse"] + 3.0
    again = run("rebuild", "clothes/net/tuned", "--output", data.parent / "again.onnx")
    assert again.code == 0, again.err
