"""Asking the cluster about photos and clothes under many limits, and keeping what it said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.common.intervals import wilson_percent
from modelless.controller.demo.profiles import short_name
from modelless.controller.demo.slos import NamedSlo
from modelless.controller.usecases.client import Client, InferReply, encode_infer
from modelless.variants.vocabulary import Task

LEAST_JUDGED_PX = 224
"""Labels are held to account from this input resolution on: the smallest that was published."""


@dataclass(frozen=True, slots=True, eq=False)
class Photo:
    """A photo whose content is known.

    Attributes:
        pixels: UINT8 [height, width, 3], RGB.
    """

    name: str
    pixels: NDArray[np.uint8]
    acceptable: frozenset[str]


@dataclass(frozen=True, slots=True)
class PhotoAnswer:
    """The answer to one photo under one SLO, as it stands in the report.

    Attributes:
        status, error: of HTTP, and the server's words; empty with an answer.
        client_ms: until the end of the reply, by the client's clock.
        label, score: of the likeliest class; empty and 0 with a refusal, as all that follows.
        is_judged: whether its label counts: the resolution is one that accuracies were published
            for.
        accuracy, accuracy_provenance: of the variant, per cent.
    """

    photo: str
    slo: str
    status: int
    error: str
    client_ms: float
    label: str = ""
    score: float = 0.0
    is_sane: bool = False
    is_judged: bool = False
    variant: str = ""
    short_name: str = ""
    accuracy: float | None = None
    accuracy_provenance: str | None = None
    predicted_ms: float | None = None
    observed_ms: float | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class PhotoFindings:
    """Photos, the limits under which each was asked about, and every answer."""

    photos: Sequence[Photo]
    slos: Sequence[NamedSlo]
    answers: Sequence[PhotoAnswer]

    def document(self) -> dict[str, Any]:
        """All of it as plain data, and how much of it is sane."""
        judged = [answer for answer in self.answers if answer.is_judged]
        return {
            "photos": [
                {"name": photo.name, "acceptable": sorted(photo.acceptable)}
                for photo in self.photos
            ],
            "slos": [
                {"name": slo.name, "limits": slo.limits, "is_feasible": slo.is_feasible}
                for slo in self.slos
            ],
            "answers": [asdict(answer) for answer in self.answers],
            "distinct_variants": sorted({one.variant for one in self.answers if one.variant}),
            "judged": len(judged),
            "sane": sum(answer.is_sane for answer in judged),
            "answered": sum(answer.status == 200 for answer in self.answers),
            "sane_of_answered": sum(answer.is_sane for answer in self.answers),
        }


@dataclass(frozen=True, slots=True)
class ClothesAnswer:
    """The answers to the labelled test images under one SLO, as they stand in the report.

    Attributes:
        measured_percent, measured_low, measured_high: share of the answers that are right, with
            its Wilson 95 % interval, per cent; the share is 0 without any.
        stated_percent: accuracy the replies stated, mean over the images.
        variants: ``variant``, ``short_name`` and ``images`` of each variant that answered.
    """

    slo: str
    limits: str
    images: int
    right: int
    refused: int
    measured_percent: float
    measured_low: float
    measured_high: float
    stated_percent: float
    variants: Sequence[Mapping[str, Any]]


def ask_about_photos(
    client: Client,
    task: Task,
    photos: Sequence[Photo],
    slos: Sequence[NamedSlo],
    resolutions_px: Mapping[str, int | None],
    on_answer: Callable[[PhotoAnswer], None] = lambda _: None,
) -> list[PhotoAnswer]:
    """Each photo under each SLO, one after another.

    Args:
        task: of one image in, scores of classes out.
    """
    classes = {task.outputs[0].name: 1}
    answers = []
    for photo in photos:
        inputs = {task.inputs[0].name: photo.pixels[None]}
        for slo in slos:
            reply = client.send(encode_infer(task.name, inputs, slo.slo, classes=classes))
            answers.append(_answer(photo, slo.name, reply, resolutions_px))
            on_answer(answers[-1])
    return answers


def _answer(
    photo: Photo, slo: str, reply: InferReply, resolutions_px: Mapping[str, int | None]
) -> PhotoAnswer:
    client_ms = round(reply.latency_ms, 3)
    if not reply.is_answer:
        return PhotoAnswer(photo.name, slo, reply.status, reply.error, client_ms)
    ((score, index, label),) = next(iter(reply.classes.values()))[0]
    shown = label or str(index)
    said = reply.parameters
    return PhotoAnswer(
        photo.name,
        slo,
        reply.status,
        reply.error,
        client_ms,
        label=shown,
        score=score,
        is_sane=shown in photo.acceptable,
        is_judged=(resolutions_px.get(said["variant"]) or 0) >= LEAST_JUDGED_PX,
        variant=said["variant"],
        short_name=short_name(said["variant"]),
        accuracy=said["accuracy"],
        accuracy_provenance=said["accuracy_provenance"],
        predicted_ms=said["predicted_latency_ms"],
        observed_ms=said["observed_latency_ms"],
        cost_usd=said.get("cost_usd"),
    )


def ask_about_clothes(
    client: Client,
    task: Task,
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    slo: NamedSlo,
    batch: int,
) -> ClothesAnswer:
    """Labelled images through the cluster, ``batch`` a query; count how many come back right.

    Args:
        images, labels: UINT8 [n, height, width] and class indices UINT8 [n].
    """
    by_variant: Counter[str] = Counter()
    right = refused = 0
    stated = 0.0
    for start in range(0, len(images), batch):
        part, truth = images[start : start + batch], labels[start : start + batch]
        reply = client.send(encode_infer(task.name, {task.inputs[0].name: part}, slo.slo))
        if not reply.is_answer:
            refused += len(part)
            continue
        scores = reply.tensors[task.outputs[0].name]
        right += int((scores.argmax(axis=1) == truth).sum())
        by_variant[str(reply.parameters["variant"])] += len(part)
        stated += float(reply.parameters["accuracy"]) * len(part)
    answered = len(images) - refused
    low_percent, high_percent = wilson_percent(right, answered)
    return ClothesAnswer(
        slo=slo.name,
        limits=slo.limits,
        images=answered,
        right=right,
        refused=refused,
        measured_percent=100.0 * right / max(answered, 1),
        measured_low=low_percent,
        measured_high=high_percent,
        stated_percent=stated / max(answered, 1),
        variants=[
            {"variant": name, "short_name": short_name(name), "images": count}
            for name, count in by_variant.most_common()
        ],
    )
