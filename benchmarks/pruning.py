"""What does fine-tuning learn back of what pruning cost? On Fashion-MNIST's 10,000 test images.

For each network of the zoo: float32, each pruning, and the same fine-tuned. Top-1 with its Wilson
95 % interval, and the difference to float32 on the same images with McNemar's exact test. It learns
from the first images of the training split, without their labels; the test split is only measured
on. ``--data`` holds the ``*-ubyte.gz`` files of both (Debian: ``dataset-fashion-mnist``, under
``/usr/share/datasets/fashion-mnist``). Needs PyTorch.

    python benchmarks/pruning.py --data DIR --models cnn-s,cnn-xl --images 10000 --steps 1000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from fashion_accuracy import Split, against, top_1
from numpy.typing import NDArray

from modelless.variants.making.builder import run_step, with_answers
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.recipe import parse_step
from modelless.variants.zoo.fashion_mnist import DATA
from modelless.variants.zoo.training.fashion_mnist import Data, load_data

_HEAD: Final = ("model", "variant", "top-1 % (95 % interval)", "against fp32, points", "p", "s")
_PRUNINGS: Final = {
    "50 % of weights": {"prune-magnitude": {"sparsity": 0.5}},
    "70 % of weights": {"prune-magnitude": {"sparsity": 0.7}},
    "90 % of weights": {"prune-magnitude": {"sparsity": 0.9}},
    "25 % of channels": {"prune-structured": {"share": 0.25}},
    "50 % of channels": {"prune-structured": {"share": 0.5}},
}


def rows_of(model: str, data: Data, images: int, steps: int) -> Iterator[tuple[str, ...]]:
    source = (DATA / f"{model}-fp32.onnx").read_bytes()
    calibration = with_answers(source, CalibrationData.of({"image": data.train_images[:images]}))
    optimised, _ = run_step(parse_step("optimise"), source, calibration)
    test = Split(data.test_images, data.test_labels)
    exact = test.is_right(optimised)
    yield _row(model, "fp32", exact, exact, 0.0)
    for name, pruning in _PRUNINGS.items():
        for steps_of in ([pruning], [pruning, {"fine-tune": {"steps": steps}}]):
            made, started_s = optimised, time.process_time()
            for step in steps_of:
                made, _ = run_step(parse_step(step), made, calibration)
            taken_s = time.process_time() - started_s
            words = f"{name} gone" + (", fine-tuned" if len(steps_of) > 1 else "")
            yield _row(model, words, test.is_right(made), exact, taken_s)


def _row(
    model: str, name: str, right: NDArray[np.bool_], exact: NDArray[np.bool_], taken_s: float
) -> tuple[str, ...]:
    return model, name, top_1(right), *against(right, exact), f"{taken_s:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", default="cnn-s,cnn-xl")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    data = load_data(options.data)
    print("| " + " | ".join(_HEAD) + " |\n|" + "---|" * len(_HEAD), flush=True)
    for model in options.models.split(","):
        for row in rows_of(model, data, options.images, options.steps):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
