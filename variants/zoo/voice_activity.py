"""The task ``voice-activity``: whether somebody speaks in a recording of any length.

The network is Silero VAD (https://github.com/snakers4/silero-vad, MIT): convolutions over 32 ms,
then an LSTM over the recording. The package ``silero-vad`` holds it for one recording at a time;
here it takes several at once, and answers how likely speech is where it is likeliest. Other forms
hear every second window or every fourth, and cost as much less. The recordings are noise by rule,
with or without a piece of the half minute of talk that the package ``pyannote.audio`` holds (MIT).
"""

from __future__ import annotations

import wave
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from onnx import compose, helper, parser

from modelless.variants.graphs.canonical import at_least_opset, read_model, write_model
from modelless.variants.vocabulary import Model, Task, TensorSpec
from modelless.variants.zoo.catalog import MadeEntry, package_file, with_versions

RATE_HZ: Final = 16_000
WINDOW: Final = 512
_INSTALL: Final = "pip install --no-deps silero-vad==6.2.3 pyannote.audio==4.0.7"
_SHA256: Final = "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"
_TALK_SHA256: Final = "c319b4abca767b124e41432d364fd7df006cb26bb79d09326c487d606a134e6e"
_TALK_S: Final = (6.7, 30.0)  # within which somebody speaks nearly all the time

# Windows of 512 samples, one each hop, after the 64 samples before it: [items * windows, 576].
_FRONT: Final = """
<ir_version: 8, opset_import: ["": 17]>
front (float[N, samples] audio) => (float[M, 576] windows, int64[3] steps) {{
    hop = Constant <value_ints = [{hop}]> ()
    sizes = Shape (audio)
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    items = Slice (sizes, zero, one)
    length = Slice (sizes, one, two)
    count = Div (length, hop)
    whole = Mul (count, hop)
    cut = Slice (audio, zero, whole, one)
    shape = Concat <axis = 0> (items, count, hop)
    spans = Reshape (cut, shape)
    width = Constant <value_ints = [512]> ()
    blocks = Slice (spans, zero, width, two)
    zeros = Constant <value_ints = [0, 64, 0, 0]> ()
    late = Pad (cut, zeros)
    earlier = Slice (late, zero, whole, one)
    blocks_earlier = Reshape (earlier, shape)
    tail = Constant <value_ints = [64]> ()
    before = Slice (blocks_earlier, zero, tail, two)
    joined = Concat <axis = 2> (before, blocks)
    flat = Constant <value_ints = [-1, 576]> ()
    windows = Reshape (joined, flat)
    rest = Constant <value_ints = [-1]> ()
    steps = Concat <axis = 0> (items, count, rest)
}}
"""

# What the network found in each window to what it thinks of it, and the likeliest of a recording.
_BACK: Final = """
<ir_version: 8, opset_import: ["": 17]>
back (float[N, 1, T] speech) => (float[N, 2] probabilities) {
    likeliest = ReduceMax <axes = [2], keepdims = 0> (speech)
    certainty = Constant <value_float = 1.0> ()
    silence = Sub (certainty, likeliest)
    probabilities = Concat <axis = 1> (silence, likeliest)
}
"""


class VoiceActivity(MadeEntry):
    """Silero VAD over recordings of half a second to four."""

    name: ClassVar[str] = "voice-activity"
    summary: ClassVar[str] = "Silero VAD hears speech in recordings of any length, with noise"
    recipe: ClassVar[Mapping[str, Any]] = {
        "variants": {"fp32": ["optimise"], "int8-dynamic": ["optimise", "int8-dynamic"]}
    }
    items: int = 2000

    @cached_property
    def task(self) -> Task:
        """16,000 samples a second in, -1 to 1; the probabilities of silence and speech out."""
        return Task(
            name=self.name,
            inputs=(TensorSpec("audio", "FP32", (-1, -1), padding=0.0),),
            outputs=(TensorSpec("probabilities", "FP32", (-1, 2)),),
            accuracy_metric="top-1",
            description="Whether somebody speaks in a recording (mono, 16 kHz, 128 ms or longer).",
            labels=("silence", "speech"),
        )

    def models(self) -> Iterator[tuple[Model, bytes]]:
        """See ``MadeEntry.models``."""
        file = "data/silero_vad_16k_sequence.onnx"
        path = package_file("silero_vad", file, _INSTALL, _SHA256)
        page = "https://pypi.org/project/silero-vad/6.2.3/"
        for share, name in ((1, "silero-vad"), (2, "silero-vad-half"), (4, "silero-vad-quarter")):
            model = Model(self.name, name, "silero-vad", page, "MIT")
            yield model, detector(path.read_bytes(), share * WINDOW)

    def draw(self, rng: np.random.Generator, count: int) -> Iterator[tuple[NDArray[Any], str]]:
        """Half a second to four, as often with speech as without; see ``MadeEntry.draw``."""
        talk = _talk()
        for _ in range(count):
            seconds = float(rng.uniform(0.5, 4.0))
            audio = _noise(rng, round(seconds * RATE_HZ))
            speaks = rng.random() < 0.5
            if speaks:
                length = round(rng.uniform(0.4, seconds) * RATE_HZ)
                start, place = (
                    rng.integers(len(talk) - length),
                    rng.integers(len(audio) - length + 1),
                )
                piece = talk[start : start + length]
                ratio_db = float(rng.uniform(-12.0, 20.0))
                piece = piece / max(float(np.std(piece)), 1e-4) * np.std(audio)
                audio[place : place + length] += piece * 10 ** (ratio_db / 20.0)
            peak = float(np.abs(audio).max())
            level = float(rng.uniform(0.05, 0.9))
            yield (audio * level / peak).astype(np.float32), self.task.labels[int(speaks)]


def detector(onnx_bytes: bytes, hop: int) -> bytes:
    """Silero VAD for recordings of any number and length, from its form for one.

    Args:
        hop: samples from window to window; with more than ``WINDOW`` it leaves some out.
    """
    model = at_least_opset(read_model(onnx_bytes), 17)
    graph = model.graph
    by = {name: node for node in graph.node for name in node.output}
    (lstm,) = (node for node in graph.node if node.op_type == "LSTM")
    turned = by[lstm.input[0]]
    # In front of the LSTM all windows are in a row; it takes [windows, items, channels].
    by_item = helper.make_node("Reshape", [turned.input[0], "steps"], ["by_item"], name="by_item")
    turned.input[:] = ["by_item"]
    turned.attribute[0].CopyFrom(helper.make_attribute("perm", [1, 0, 2]))
    lstm.input[:], lstm.output[:] = lstm.input[:4], lstm.output[:1]
    flat = by[graph.output[0].name]
    scores = flat.input[0]
    graph.node.remove(flat)
    graph.node.insert(list(graph.node).index(turned), by_item)
    windows = graph.input[0].name
    del graph.input[:], graph.output[:]
    graph.input.append(helper.make_tensor_value_info(windows, 1, ["M", 576]))
    graph.input.append(helper.make_tensor_value_info("steps", 7, [3]))
    graph.output.append(helper.make_tensor_value_info(scores, 1, ["N", 1, "T"]))
    front = with_versions(parser.parse_model(_FRONT.format(hop=hop)), model)
    back = with_versions(parser.parse_model(_BACK), model)
    io_map = [("windows", windows), ("steps", "steps")]
    whole = compose.merge_models(front, model, io_map=io_map)
    return write_model(compose.merge_models(whole, back, io_map=[(scores, "speech")]))


@cache
def _talk() -> NDArray[np.float64]:
    path = package_file("pyannote.audio", "sample/sample.wav", _INSTALL, _TALK_SHA256)
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768.0
    first, last = (round(second * RATE_HZ) for second in _TALK_S)
    return samples[first:last]


def _noise(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Noise whose power falls with frequency, a hum and a few clicks; float64 [count]."""
    spectrum = np.fft.rfft(rng.normal(size=count))
    spectrum /= np.maximum(np.arange(len(spectrum)), 1.0) ** rng.uniform(0.0, 1.0)
    noise = np.fft.irfft(spectrum, count)
    noise /= noise.std()
    times_s = np.arange(count) / RATE_HZ
    for overtone in range(1, 5):
        noise += rng.exponential(0.3) * np.sin(
            2 * np.pi * overtone * rng.uniform(50, 400) * times_s
        )
    clicks = rng.integers(count, size=rng.integers(0, 6))
    noise[clicks] += rng.normal(0.0, 8.0, len(clicks))
    return noise
