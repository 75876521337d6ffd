"""Asking the cluster about photos and clothes under many limits, and keeping what it said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelless.common.intervals import wilson_percent
from modelless.controller.demo.slos import NamedSlo
from modelless.controller.usecases.client import Client, InferReply, encode_infer
from modelless.variants.vocabulary import Task

LEAST_JUDGED_PX = 224
"""Labels are held to account from this input resolution on: the smallest that was published."""


@dataclass(frozen=True, slots=True, eq=False)
class Photo:
    """A photo whose content is known.

    Attributes:
        name: for people.
        pixels: UINT8 [height, width, 3], RGB.
        acceptable: labels that name what it shows.
    """

    name: str
    pixels: NDArray[np.uint8]
    acceptable: frozenset[str]


@dataclass(frozen=True, slots=True)
class PhotoAnswer:
    """The answer to one photo under one SLO.

    Attributes:
        photo, slo: their names.
        reply: the answer or the refusal, tensors left out.
        label, score: of the likeliest class; empty and 0 with a refusal.
        resolution_px: of the variant that answered; None if unknown or refused.
        is_sane: whether the label is acceptable.
    """

    photo: str
    slo: NamedSlo
    reply: InferReply
    label: str = ""
    score: float = 0.0
    resolution_px: int | None = None
    is_sane: bool = False

    @property
    def variant(self) -> str:
        """Id of the variant that answered; empty with a refusal."""
        return str(self.reply.parameters.get("variant", ""))

    @property
    def is_judged(self) -> bool:
        """Whether its label counts: answered, at a resolution the accuracies were published for."""
        return self.reply.is_answer and (self.resolution_px or 0) >= LEAST_JUDGED_PX


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
        client: connected to the cluster.
        task: of one image in, scores of classes out.
        photos, slos: what and how.
        resolutions_px: of every variant, by id.
        on_answer: told of each.
    """
    answers = []
    for photo in photos:
        for slo in slos:
            query = encode_infer(
                task.name,
                {task.inputs[0].name: photo.pixels[None]},
                slo.slo,
                classes={task.outputs[0].name: 1},
            )
            answers.append(_answer(photo, slo, client.send(query), resolutions_px))
            on_answer(answers[-1])
    return answers


def _answer(
    photo: Photo, slo: NamedSlo, reply: InferReply, resolutions_px: Mapping[str, int | None]
) -> PhotoAnswer:
    if not reply.is_answer:
        return PhotoAnswer(photo.name, slo, reply)
    ((score, index, label),) = next(iter(reply.classes.values()))[0]
    shown = label or str(index)
    return PhotoAnswer(
        photo.name,
        slo,
        reply,
        shown,
        score,
        resolutions_px.get(str(reply.parameters.get("variant"))),
        shown in photo.acceptable,
    )


@dataclass(frozen=True, slots=True)
class ClothesAnswer:
    """The answers to the labelled test images under one SLO.

    Attributes:
        slo: the limits.
        images, right: answered, and answered rightly.
        low_percent, high_percent: Wilson 95 % interval of the measured accuracy.
        stated_percent: accuracy the replies stated, mean over the images.
        by_variant: images that each variant answered.
        refused: images that were refused.
    """

    slo: NamedSlo
    images: int
    right: int
    low_percent: float
    high_percent: float
    stated_percent: float
    by_variant: Mapping[str, int]
    refused: int

    @property
    def measured_percent(self) -> float:
        """Share of the answers that are right, per cent; 0 without any."""
        return 100.0 * self.right / self.images if self.images else 0.0


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
        query = encode_infer(task.name, {task.inputs[0].name: part}, slo.slo)
        reply = client.send(query)
        if not reply.is_answer:
            refused += len(part)
            continue
        scores = reply.tensors[task.outputs[0].name]
        right += int((scores.argmax(axis=1) == truth).sum())
        by_variant[str(reply.parameters["variant"])] += len(part)
        stated += float(reply.parameters["accuracy"]) * len(part)
    answered = len(images) - refused
    low, high = wilson_percent(right, answered)
    stated_percent = stated / answered if answered else 0.0
    return ClothesAnswer(
        slo, answered, right, low, high, stated_percent, dict(by_variant.most_common()), refused
    )
