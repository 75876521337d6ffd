"""Asking the cluster about photos and clothes under many limits, and keeping what it said."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.common.errors import EnvironmentUnfitError
from modelless.common.intervals import wilson_percent
from modelless.controller.demo.profiles import short_name
from modelless.controller.demo.slos import NamedSlo
from modelless.controller.usecases.client import Client, InferReply, encode_infer
from modelless.variants.vocabulary import Task

LEAST_JUDGED_PX = 224
"""Labels are held to account from this input resolution on: the smallest that was published."""
PHOTO_PX = 224
"""Side of the squares that are sent: what variants are profiled with. They take any size, but a
larger one costs more than the profile says, and a deadline of a few milliseconds feels it."""
_FRAMES = {"rocket": (200, 105, 310)}
"""Left, top and side of a square in the original: the subject, where the centre square holds more
besides. A rocket between four towers is a drilling rig to a network."""
_NEEDED = {"PIL": "pillow", "matplotlib": "matplotlib", "skimage": "scikit-image"}

Answer = dict[str, Any]
"""The answer to one photo under one SLO, as it stands in the report: ``photo``, ``slo``, ``status``
of HTTP, ``client_ms`` by the client's clock; with an answer also ``label`` and ``score`` of the
likeliest class, ``is_sane``, ``is_judged`` (whether its label counts), ``variant``, ``short_name``,
``accuracy`` (per cent), ``accuracy_provenance``, ``predicted_ms``, ``observed_ms``, ``cost_usd``;
with a refusal ``error``, the server's words."""
_REFUSED: Answer = {
    "label": "",
    "score": 0.0,
    "is_sane": False,
    "is_judged": False,
    "variant": "",
    "short_name": "",
    "accuracy": None,
    "accuracy_provenance": None,
    "predicted_ms": None,
    "observed_ms": None,
    "cost_usd": None,
}


@dataclass(frozen=True, slots=True, eq=False)
class Photo:
    """A photo whose content is known.

    Attributes:
        pixels: UINT8 [height, width, 3], RGB.
    """

    name: str
    pixels: NDArray[np.uint8]
    acceptable: frozenset[str]

    def thumbnail(self) -> str:
        """The photo as a small JPEG in a ``data:`` URL."""
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(self.pixels).save(buffer, "JPEG", quality=78)
        return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def check_extras() -> None:
    """Raise EnvironmentUnfitError now, not minutes later, if the demo's extra is not installed."""
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise EnvironmentUnfitError(
            f"the demo needs {', '.join(missing)}: pip install 'modelless[cpu,demo]'"
        )


def load_photos() -> list[Photo]:
    """Photos from scikit-image and scikit-learn whose content ImageNet has a class for.

    Raises:
        EnvironmentUnfitError: a package that ships photos is not installed.
    """
    from modelless.variants.zoo.photos import LABELLED

    photos = []
    for scene in LABELLED:
        if scene.package in ("skimage", "sklearn"):
            pixels = scene.load()
            if scene.name in _FRAMES:
                left, top, side = _FRAMES[scene.name]
                pixels = pixels[top : top + side, left : left + side]
            photos.append(Photo(scene.name, square(pixels, PHOTO_PX), frozenset(scene.labels)))
    return photos


def square(pixels: NDArray[np.uint8], side_px: int) -> NDArray[np.uint8]:
    """The centre square of UINT8 [h, w, 3], scaled to ``side_px``."""
    from PIL import Image, ImageOps

    fitted = ImageOps.fit(Image.fromarray(pixels), (side_px, side_px), Image.Resampling.LANCZOS)
    return np.ascontiguousarray(fitted, dtype=np.uint8)


def ask_about_photos(
    client: Client,
    task: Task,
    photos: Sequence[Photo],
    slos: Sequence[NamedSlo],
    resolutions_px: Mapping[str, int | None],
    on_answer: Callable[[Answer], None] = lambda _: None,
) -> list[Answer]:
    """Each photo under each SLO, one after another.

    Args:
        task: of one image in, scores of classes out.
        resolutions_px: side of each variant's own input, by id.
    """
    classes = {task.outputs[0].name: 1}
    answers = []
    for photo in photos:
        inputs = {task.inputs[0].name: photo.pixels[None]}
        for slo in slos:
            reply = client.send(encode_infer(task.name, inputs, slo.slo, classes=classes))
            answers.append(
                {
                    "photo": photo.name,
                    "slo": slo.name,
                    "status": reply.status,
                    "error": reply.error,
                    "client_ms": round(reply.latency_ms, 3),
                    **_REFUSED,
                    **(_told(photo, reply, resolutions_px) if reply.is_answer else {}),
                }
            )
            on_answer(answers[-1])
    return answers


def _told(photo: Photo, reply: InferReply, resolutions_px: Mapping[str, int | None]) -> Answer:
    ((score, index, label),) = next(iter(reply.classes.values()))[0]
    said = reply.parameters
    return {
        "label": label or str(index),
        "score": score,
        "is_sane": (label or str(index)) in photo.acceptable,
        "is_judged": (resolutions_px.get(said["variant"]) or 0) >= LEAST_JUDGED_PX,
        "variant": said["variant"],
        "short_name": short_name(said["variant"]),
        "accuracy": said["accuracy"],
        "accuracy_provenance": said["accuracy_provenance"],
        "predicted_ms": said["predicted_latency_ms"],
        "observed_ms": said["observed_latency_ms"],
        "cost_usd": said.get("cost_usd"),
    }


def photos_document(
    photos: Sequence[Photo], slos: Sequence[NamedSlo], answers: Sequence[Answer]
) -> dict[str, Any]:
    """Photos, limits and answers as they stand in the report, and how many answers are sane."""
    judged = [answer for answer in answers if answer["is_judged"]]
    return {
        "photos": [{"name": each.name, "acceptable": sorted(each.acceptable)} for each in photos],
        "slos": [
            {"name": slo.name, "limits": slo.limits, "is_feasible": slo.is_feasible} for slo in slos
        ],
        "answers": list(answers),
        "distinct_variants": sorted({each["variant"] for each in answers if each["variant"]}),
        "judged": len(judged),
        "sane": sum(answer["is_sane"] for answer in judged),
        "answered": sum(answer["status"] == 200 for answer in answers),
        "sane_of_answered": sum(answer["is_sane"] for answer in answers),
    }


def ask_about_clothes(
    client: Client,
    task: Task,
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    slo: NamedSlo,
    batch: int,
) -> dict[str, Any]:
    """Labelled images through the cluster, ``batch`` a query; how many come back right.

    Args:
        images, labels: UINT8 [n, height, width] and class indices UINT8 [n].

    Returns:
        As it stands in the report. ``measured_percent`` is the share of the answers that are right,
        with its Wilson 95 % interval, and ``stated_percent`` what the replies stated, mean over the
        images; both are 0 without any answer.
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
    return {
        "slo": slo.name,
        "limits": slo.limits,
        "images": answered,
        "right": right,
        "refused": refused,
        "measured_percent": 100.0 * right / max(answered, 1),
        "measured_low": low_percent,
        "measured_high": high_percent,
        "stated_percent": stated / max(answered, 1),
        "variants": [
            {"variant": name, "short_name": short_name(name), "images": count}
            for name, count in by_variant.most_common()
        ],
    }
