"""Mean average precision of detected objects, as COCO counts it.

AP is the precision at 101 levels of recall from 0 to 1, interpolated from the right; the mean is
over classes and over ten thresholds of overlap (IoU), 0.50 to 0.95, of at most 100 detections a
picture. Without COCO's crowds, and over objects of every size. Lin et al., Microsoft COCO, ECCV
2014; https://cocodataset.org/#detection-eval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modelless.variants.metrics.metric import Metric
from modelless.variants.metrics.outputs import find_output
from modelless.variants.runtimes.runtime import Tensors
from modelless.variants.validation.expected import Boxes, Expects
from modelless.variants.vocabulary import Task

IOU_THRESHOLDS: Final = np.linspace(0.5, 0.95, 10)
RECALL_LEVELS: Final = np.linspace(0.0, 1.0, 101)
MOST_DETECTIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Matches:
    """A picture's detections, held against its objects.

    Attributes:
        classes: INT64 [detections].
        scores: FP64 [detections].
        is_hit: BOOL [thresholds, detections]: it is matched to an object of its class.
        object_classes: INT64 [objects].
    """

    classes: NDArray[np.int64]
    scores: NDArray[np.float64]
    is_hit: NDArray[np.bool_]
    object_classes: NDArray[np.int64]


class MeanAveragePrecision(Metric):
    """See the module.

    The task's outputs are ``boxes`` FP [-1, most, 4] (x1, y1, x2, y2), ``scores`` FP [-1, most] and
    ``classes`` [-1, most]. A score of 0 or less, or one that is no number, is no detection.

    Raises:
        InvalidInputError: the task has other outputs.
    """

    name = "map"
    expects = Expects.BOXES

    def __init__(self, task: Task) -> None:
        for name, axes in (("boxes", 3), ("scores", 2), ("classes", 2)):
            find_output(
                task,
                self.name,
                lambda spec, name=name, axes=axes: spec.name == name and len(spec.shape) == axes,  # type: ignore[misc]
                "boxes FP32 [-1, most, 4], scores FP32 [-1, most], classes INT64 [-1, most]",
            )

    def evidence(self, outputs: Tensors, expected: Sequence[Any]) -> NDArray[np.object_]:
        """A ``Matches`` an item."""
        rows = np.empty(len(expected), np.object_)
        parts = (outputs["boxes"], outputs["scores"], outputs["classes"])
        for index, (corners, scores, classes, truth) in enumerate(
            zip(*parts, expected, strict=True)
        ):
            rows[index] = match(
                corners.astype(np.float64), scores.astype(np.float64), classes, truth
            )
        return rows

    def percent(self, evidence: NDArray[Any]) -> float:
        """100 times the mean; 0 where there is no object at all."""
        truths = np.concatenate([each.object_classes for each in evidence])
        classes = np.concatenate([each.classes for each in evidence])
        scores = np.concatenate([each.scores for each in evidence])
        hits = np.concatenate([each.is_hit for each in evidence], axis=1)
        order = np.argsort(-scores, kind="stable")
        classes, hits = classes[order], hits[:, order]
        means = [
            _average_precisions(hits[:, classes == number], int(count)).mean()
            for number, count in zip(*np.unique(truths, return_counts=True), strict=True)
        ]
        return 100.0 * float(np.mean(means)) if means else 0.0


def match(
    corners: NDArray[np.float64], scores: NDArray[np.float64], classes: NDArray[Any], truth: Boxes
) -> Matches:
    """Hold a picture's detections against its objects, the surest first.

    Each takes the object of its class, not taken yet, that it overlaps most.

    Args:
        corners: FP64 [detections, 4].
        scores: FP64 [detections].
        classes: whole numbers [detections].
        truth: the objects.
    """
    kept = np.flatnonzero(scores > 0.0)
    kept = kept[np.argsort(-scores[kept], kind="stable")]
    kinds = classes[kept].astype(np.int64)
    # COCO's bound is for each class of a picture.
    place = np.zeros(len(kept), np.int64)
    for kind in np.unique(kinds):
        place[kinds == kind] = np.arange(np.count_nonzero(kinds == kind))
    kept, kinds = kept[place < MOST_DETECTIONS], kinds[place < MOST_DETECTIONS]
    overlap = overlaps(corners[kept], truth.corners)
    overlap[kinds[:, None] != truth.classes[None, :]] = -1.0
    is_hit = np.zeros((len(IOU_THRESHOLDS), len(kept)), np.bool_)
    for row, threshold in enumerate(IOU_THRESHOLDS):
        free = np.ones(len(truth.classes), np.bool_)
        for detection in range(len(kept)):
            left = np.where(free, overlap[detection], -1.0)
            if left.size and left.max() >= threshold:
                free[int(left.argmax())] = False
                is_hit[row, detection] = True
    return Matches(kinds, scores[kept], is_hit, truth.classes)


def overlaps(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union of every pair of boxes, FP64 [one, other]."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = np.clip(high - low, 0.0, None).prod(axis=2)
    areas = [np.clip(each[:, 2:] - each[:, :2], 0.0, None).prod(axis=1) for each in (one, other)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    shares: NDArray[np.float64] = np.divide(
        shared, union, out=np.zeros_like(shared), where=union > 0.0
    )
    return shares


def _average_precisions(hits: NDArray[np.bool_], objects: int) -> NDArray[np.float64]:
    """AP at each threshold, from BOOL [thresholds, detections], the surest first."""
    count = hits.shape[1]
    if count == 0:
        return np.zeros(len(hits))
    found = np.cumsum(hits, axis=1)
    recall = found / objects
    precision = found / np.arange(1, count + 1)
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    means = np.zeros(len(hits))
    for row in range(len(hits)):
        at = np.searchsorted(recall[row], RECALL_LEVELS)
        reached = at < count
        means[row] = precision[row, at[reached]].sum() / len(RECALL_LEVELS)
    return means
