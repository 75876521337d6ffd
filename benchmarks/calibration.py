"""Which rule for int8 ranges, and does bias correction pay? On Fashion-MNIST's 10,000 test images.

For each network of the zoo: float32, and static int8 by each rule for the activations' ranges, with
and without bias correction. Top-1 with its Wilson 95 % interval, and the difference to float32 on
the same images with McNemar's exact test. The ranges are measured on the first images of the test
split, as the training split is not shipped; ``others`` is the top-1 on the images after those.

    python benchmarks/calibration.py --models cnn-xs,cnn-m,cnn-xl --calibration 1000
"""

from __future__ import annotations

import argparse
import itertools
from typing import Final, get_args

import numpy as np
from fashion_accuracy import Split, against, top_1
from numpy.typing import NDArray

from modelless.variants.making.activation_ranges import Method
from modelless.variants.making.builder import run_step
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.recipe import parse_step
from modelless.variants.zoo.fashion_mnist import DATA, FashionMnist

_HEAD: Final = (
    *("model", "variant", "top-1 % (95 % interval)", "others %", "against fp32, points"),
    "p",
)


def rows_of(model: str, split: Split, count: int) -> list[tuple[str, ...]]:
    """The table's rows of one network, ranges measured on the first ``count`` images."""
    calibration = CalibrationData.of({"image": split.images[:count]})
    source = (DATA / f"{model}-fp32.onnx").read_bytes()
    optimised, _ = run_step(parse_step("optimise"), source, calibration)
    exact = split.is_right(optimised)
    rows = [_row(model, "fp32", exact, exact, count)]
    for method, corrects in itertools.product(get_args(Method), (False, True)):
        step = parse_step({"int8-static": {"calibration": method, "bias_correction": corrects}})
        made, _ = run_step(step, optimised, calibration)
        name = f"int8 {method}" + (", biases corrected" if corrects else "")
        rows.append(_row(model, name, split.is_right(made), exact, count))
    return rows


def _row(
    model: str, name: str, right: NDArray[np.bool_], exact: NDArray[np.bool_], count: int
) -> tuple[str, ...]:
    return model, name, top_1(right), f"{100 * right[count:].mean():.2f}", *against(right, exact)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="cnn-xs,cnn-s,cnn-m,cnn-l,cnn-xl")
    parser.add_argument("--calibration", type=int, default=1000, help="images to measure ranges on")
    given = parser.parse_args()
    split = Split(*FashionMnist().test_split())
    for line in (_HEAD, ("---",) * len(_HEAD)):
        print("| " + " | ".join(line) + " |")
    for model in given.models.split(","):
        for row in rows_of(model, split, given.calibration):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
