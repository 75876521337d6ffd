"""What do int8 rules and fine-tuning bring? Top-1 on Fashion-MNIST's 10,000 test images.

    python benchmarks/profiling/making.py ranges [--models cnn-xs,cnn-m,cnn-xl] [--images 1000]
    python benchmarks/profiling/making.py pruning --data DIR [--models cnn-s,cnn-xl]
        [--images 10000] [--steps 1000]

``ranges``: for each network of the zoo, float32, and static int8 by each rule for the activations'
ranges, with and without bias correction. The ranges are measured on the first images of the test
split, as the training split is not shipped; ``others`` is the top-1 on the images after those.

``pruning``: float32, each pruning, and the same fine-tuned. It learns from the first images of the
training split, without their labels; the test split is only measured on. ``--data`` holds the
``*-ubyte.gz`` files of both (Debian: ``dataset-fashion-mnist``, under
``/usr/share/datasets/fashion-mnist``). Needs PyTorch. ``s`` is processor time.

Top-1 has its Wilson 95 % interval. The difference to float32 is on the same images, with McNemar's
exact test.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
from fashion_mnist_training import load_data
from numpy.typing import NDArray

from modelless.common.intervals import wilson_percent
from modelless.variants.making.activation_ranges import Method
from modelless.variants.making.builder import run_step, with_answers
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.recipe import parse_step
from modelless.variants.making.session import Session
from modelless.variants.metrics.paired import compare_right
from modelless.variants.zoo.fashion_mnist import DATA, FashionMnist

_BATCH: Final = 500
_PRUNINGS: Final[dict[str, dict[str, Any]]] = {
    "50 % of weights": {"prune-magnitude": {"sparsity": 0.5}},
    "70 % of weights": {"prune-magnitude": {"sparsity": 0.7}},
    "90 % of weights": {"prune-magnitude": {"sparsity": 0.9}},
    "25 % of channels": {"prune-structured": {"share": 0.25}},
    "50 % of channels": {"prune-structured": {"share": 0.5}},
}

Row = tuple[str, ...]


def is_right(onnx_bytes: bytes, images: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.bool_]:
    """BOOL [N]: which of the images, UINT8 [N, 28, 28], the model puts into their class."""
    session = Session(onnx_bytes)
    (output,) = session.outputs
    found = [
        session.run({"image": images[start : start + _BATCH]})[output].argmax(axis=1)
        for start in range(0, len(images), _BATCH)
    ]
    return np.asarray(np.concatenate(found) == labels)


def row_of(model: str, name: str, right: NDArray[Any], exact: NDArray[Any], *more: str) -> Row:
    low, high = wilson_percent(int(right.sum()), len(right))
    against = "", ""
    if right is not exact:
        found = compare_right(right, exact)
        against = f"{found.percent:+.2f}", f"{found.p_value:.2g}"
    return model, name, f"{100 * right.mean():.2f} ({low:.2f} to {high:.2f})", *against, *more


def ranges(told: argparse.Namespace) -> Iterator[Row]:
    yield "model", "variant", "top-1 % (95 % interval)", "against fp32, points", "p", "others %"
    images, labels = FashionMnist().test_split()
    calibration = CalibrationData.of({"image": images[: told.images]})

    def row(name: str, onnx_bytes: bytes, exact: NDArray[Any] | None) -> tuple[Row, NDArray[Any]]:
        right = is_right(onnx_bytes, images, labels)
        exact = right if exact is None else exact
        others = f"{100 * right[told.images :].mean():.2f}"
        return row_of(model, name, right, exact, others), exact

    for model in told.models.split(","):
        source = (DATA / f"{model}-fp32.onnx").read_bytes()
        optimised, _ = run_step(parse_step("optimise"), source, calibration)
        first, exact = row("fp32", optimised, None)
        yield first
        for method, corrects in itertools.product(get_args(Method), (False, True)):
            step = parse_step({"int8-static": {"calibration": method, "bias_correction": corrects}})
            made, _ = run_step(step, optimised, calibration)
            yield row(f"int8 {method}" + (", biases corrected" if corrects else ""), made, exact)[0]


def pruning(told: argparse.Namespace) -> Iterator[Row]:
    yield "model", "variant", "top-1 % (95 % interval)", "against fp32, points", "p", "s"
    data = load_data(told.data)
    feed = CalibrationData.of({"image": data.train_images[: told.images]})
    for model in told.models.split(","):
        source = (DATA / f"{model}-fp32.onnx").read_bytes()
        calibration = with_answers(source, feed)
        optimised, _ = run_step(parse_step("optimise"), source, calibration)
        exact = is_right(optimised, data.test_images, data.test_labels)
        yield row_of(model, "fp32", exact, exact, "0")
        for (name, prunes), tunes in itertools.product(_PRUNINGS.items(), (False, True)):
            made, started_s = optimised, time.process_time()
            for step in [prunes, {"fine-tune": {"steps": told.steps}}][: 1 + tunes]:
                made, _ = run_step(parse_step(step), made, calibration)
            taken_s = time.process_time() - started_s
            right = is_right(made, data.test_images, data.test_labels)
            words = f"{name} gone" + (", fine-tuned" if tunes else "")
            yield row_of(model, words, right, exact, f"{taken_s:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("ranges", "pruning"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--models")
    parser.add_argument("--images", type=int, help="to measure ranges on, or to learn from")
    parser.add_argument("--steps", type=int, default=1000)
    told = parser.parse_args()
    is_pruning = told.what == "pruning"
    if is_pruning and told.data is None:
        parser.error("pruning needs --data")
    told.models = told.models or (
        "cnn-s,cnn-xl" if is_pruning else "cnn-xs,cnn-s,cnn-m,cnn-l,cnn-xl"
    )
    told.images = told.images or (10_000 if is_pruning else 1000)
    for number, line in enumerate(pruning(told) if is_pruning else ranges(told)):
        print("| " + " | ".join(line) + " |", flush=True)
        if number == 0:
            print("|" + "---|" * len(line), flush=True)


if __name__ == "__main__":
    main()
