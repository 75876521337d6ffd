"""One EfficientNet-Lite0, one command: a family over many makers and both engines."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError
from modelless.variants.making.origins import find_origin
from modelless.variants.registry.registry import open_registry
from modelless.variants.runtimes.engines import engine_status
from modelless.variants.vocabulary import Engine
from modelless.variants.zoo.efficientnet_lite import ARCHITECTURES, load_network, write_graph
from modelless.variants.zoo.imagenet import class_names
from modelless.variants.zoo.photos import LABELLED, UNLABELLED, Photo, crops

from .conftest import Run

SIDE_PX = 256


def photos(seed: int, count: int, of: tuple[Photo, ...]) -> tuple[NDArray[np.uint8], list[Photo]]:
    """Crops, all of one size: UINT8 [count, SIDE_PX, SIDE_PX, 3]; and of which photo each is."""
    image = pytest.importorskip("PIL.Image", reason="pip install 'modelless[demo]'")
    found = list(crops(np.random.default_rng(seed), count, of))
    pixels = [image.fromarray(crop.pixels).resize((SIDE_PX, SIDE_PX)) for crop in found]
    return np.stack([np.asarray(each) for each in pixels]), [crop.photo for crop in found]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_family_of_efficientnet_lite0(run: Run, home: Path, tmp_path: Path) -> None:
    try:
        network, names = load_network(ARCHITECTURES[0]), class_names()
        calibration, _ = photos(1, 4, UNLABELLED)
        pictures, of = photos(2, 14, LABELLED)
    except EnvironmentUnfitError as error:
        pytest.skip(str(error))
    (tmp_path / "lite0.onnx").write_bytes(write_graph(network, 224).SerializeToString())
    np.savez(tmp_path / "calibration.npz", image=calibration)
    np.savez(
        tmp_path / "set.npz",
        image=pictures,
        labels=[names.index(photo.labels[0]) for photo in of],
    )
    ran = run(
        "make", "lite0.onnx", "--task", "photos", "--model", "lite0", "--resolution", 224,
        "--validation", "set.npz", "--calibration", "calibration.npz",
        "--batches", 1, "--budget", "5s", "--accept-noise", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = ran.document["variants"]
    makers = {step["maker"] for row in rows for step in row["steps"]}
    assert len(rows) >= 10
    assert len(makers) >= 5
    engines = {row["engine"] for row in rows}
    assert engines == {
        engine.value
        for engine in (Engine.ONNXRUNTIME_CPU, Engine.OPENVINO)
        if engine_status(engine).available
    }
    by_name = {row["name"]: row for row in rows}
    assert by_name["fp32"]["accuracy"] > 50
    assert by_name["fp32"]["resolution_px"] == 224
    assert by_name["int8-160"]["resolution_px"] == 160
    assert by_name["int8"]["bytes"] < 0.3 * by_name["fp32"]["bytes"]
    assert all(row["fidelity"]["items"] == 4 for row in rows)
    if Engine.OPENVINO.value in engines:
        assert by_name["fp32-openvino"]["fidelity"]["sqnr_db"] > 20
    with closing(open_registry(home)) as registry:
        assert all(find_origin(registry.store, row["variant"]) is not None for row in rows)
    rebuilt = run("rebuild", "photos/lite0/slim-int8", "--json")
    assert rebuilt.code == 0, rebuilt.err
    assert rebuilt.document["sha256"] == by_name["slim-int8"]["sha256"]
