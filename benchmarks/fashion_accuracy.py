"""How right networks are on Fashion-MNIST's test split, for the benchmarks that compare makers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modelless.common.intervals import wilson_percent
from modelless.variants.making.session import Session
from modelless.variants.metrics.paired import compare_right

_BATCH: Final = 500


@dataclass(frozen=True)
class Split:
    """The test split: images UINT8 [N, 28, 28], labels UINT8 [N]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]

    def is_right(self, onnx_bytes: bytes) -> NDArray[np.bool_]:
        """BOOL [N]: which images the model puts into their class."""
        session = Session(onnx_bytes)
        (output,) = session.outputs
        found = [
            session.run({"image": self.images[start : start + _BATCH]})[output].argmax(axis=1)
            for start in range(0, len(self.images), _BATCH)
        ]
        return np.asarray(np.concatenate(found) == self.labels)


def top_1(right: NDArray[np.bool_]) -> str:
    """Top-1, per cent, with its Wilson 95 % interval."""
    low, high = wilson_percent(int(right.sum()), len(right))
    return f"{100 * right.mean():.2f} ({low:.2f} to {high:.2f})"


def against(right: NDArray[np.bool_], exact: NDArray[np.bool_]) -> tuple[str, str]:
    """Points above ``exact`` and McNemar's p; empty for ``exact`` itself."""
    if right is exact:
        return "", ""
    found = compare_right(right, exact)
    return f"{found.percent:+.2f}", f"{found.p_value:.2g}"
