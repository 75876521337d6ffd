"""The types that all other code speaks of: tasks, models, variants, devices. All are frozen."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Final, NamedTuple

from modelless.common.errors import InvalidInputError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SET_HASH = re.compile(r"\(sha256 ([0-9a-f]{12})\)$")


def check_name(field: str, value: object) -> str:
    """Return ``value`` if it can stand in a URL and a file name, else raise InvalidInputError."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or ".." in value:
        raise InvalidInputError.of(
            field, value, "1 to 64 of a-z, 0-9, '.', '_', '-', beginning with a letter or digit"
        )
    return value


class Precision(StrEnum):
    """The number format of a variant's weights and activations."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


ENGINES_GROUP: Final = "modelless.engines"


class Engine(StrEnum):
    """The software that executes a variant; ``runtimes/engines`` has the facts about each.

    Besides the members there are those that installed packages offer by an entry point of the group
    ``ENGINES_GROUP``: ``Engine(name)`` gives them, too.
    """

    ONNXRUNTIME_CPU = "onnxruntime-cpu"
    OPENVINO = "openvino"
    ONNXRUNTIME_CUDA = "onnxruntime-cuda"
    ONNXRUNTIME_TENSORRT = "onnxruntime-tensorrt"
    TENSORRT = "tensorrt"

    @classmethod
    def _missing_(cls, value: object) -> Engine | None:
        if not isinstance(value, str) or not entry_points(group=ENGINES_GROUP, name=value):
            return None
        engine = str.__new__(cls, value)
        engine._name_ = engine._value_ = value
        cls._value2member_map_[value] = engine  # the same object every time
        return engine


class Provenance(StrEnum):
    """Where an accuracy comes from, most trustworthy first."""

    MEASURED = "measured"
    PUBLISHED = "published"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a task's signature.

    Attributes:
        datatype: an Open Inference Protocol datatype: ``UINT8``, ``FP32``, ...
        shape: sizes; ``-1`` is free. The first axis counts items, so it is ``-1``.
        padding: what items of free sizes are padded with at their ends, so that more of them share
            a batch: a value, or ``edge`` for the last values again; None if they are not padded.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    padding: float | str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.datatype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often a variant is right, and how we know.

    Attributes:
        percent: 0 to 100.
        metric: what it counts, e.g. ``top-1``.
        provenance: measured, published or derived.
        source: the validation set, the page, or how it was derived.
        low_percent, high_percent: 95 % confidence interval; None where a publication gives none.
        sample_count: items behind the figure; None where unknown.
    """

    percent: float
    metric: str
    provenance: Provenance
    source: str
    low_percent: float | None = None
    high_percent: float | None = None
    sample_count: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.percent) and 0.0 <= self.percent <= 100.0):
            raise InvalidInputError.of("accuracy.percent", self.percent, "0 to 100")

    @property
    def set_name(self) -> str:
        """What identifies the validation set of a measured accuracy: its hash, else its source."""
        found = _SET_HASH.search(self.source)
        return found[1] if found else self.source


@dataclass(frozen=True, slots=True)
class CtcDecoding:
    """That an output is read as a text, by connectionist temporal classification.

    Attributes:
        output: its name; FP [-1, steps, classes], a score for each of the task's labels.
        blank: the class that stands for no character.
    """

    output: str
    blank: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """A job for models: input and output signature, accuracy metric, labels.

    Attributes:
        name: e.g. ``imagenet``.
        inputs, outputs: the signature all of the task's variants share.
        accuracy_metric: e.g. ``top-1``.
        labels: class names by index; empty where outputs are not classes. Of a task whose answers
            are texts, the alphabet.
        decoding: how an output is read as a text; None where answers are no texts.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    accuracy_metric: str
    description: str = ""
    labels: tuple[str, ...] = ()
    decoding: CtcDecoding | None = None

    def __post_init__(self) -> None:
        check_name("task.name", self.name)
        if self.decoding is not None:
            self._check_decoding(self.decoding)

    def _check_decoding(self, decoding: CtcDecoding) -> None:
        spec = next((each for each in self.outputs if each.name == decoding.output), None)
        if spec is None or not spec.datatype.startswith("FP") or len(spec.shape) != 3:
            shown = "; ".join(map(str, self.outputs))
            allowed = f"FP32 [-1, steps, classes]; outputs: {shown}"
            raise InvalidInputError.of("task.decoding.output", decoding.output, allowed)
        count = len(self.labels)
        if not 0 <= decoding.blank < count:
            allowed = f"0 to {count - 1}, a class of the alphabet with its blank"
            raise InvalidInputError.of("task.decoding.blank", decoding.blank, allowed)
        if spec.shape[2] not in (-1, count):
            raise InvalidInputError.of(
                "task.decoding.alphabet",
                f"{count - 1} characters and a blank",
                f"{spec.shape[2]} together, the classes of output {spec.name!r}",
                "A character that is missing may be the space."
                if count + 1 == spec.shape[2]
                else "",
            )


@dataclass(frozen=True, slots=True)
class Model:
    """An architecture trained for a task."""

    task: str
    name: str
    family: str
    source: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        check_name("model.name", self.name)


@dataclass(frozen=True, slots=True)
class Variant:
    """One executable form of a model: precision x input resolution x engine x version.

    Attributes:
        task, model, name: ``imagenet``, ``efficientnet-lite0``, ``int8-224``.
        version: 1, 2, ...; an artifact never changes under a version.
        resolution_px: side of the network's input after its in-graph resize; None without one.
        artifact_sha256: hex digest of the artifact; the key under which it is stored.
        parameter_count, multiply_adds: of the graph, multiply-adds an item; None if unknown.
    """

    task: str
    model: str
    name: str
    version: int
    precision: Precision
    resolution_px: int | None
    engine: Engine
    artifact_sha256: str
    artifact_bytes: int
    accuracy: Accuracy
    parameter_count: int | None = None
    multiply_adds: int | None = None

    def __post_init__(self) -> None:
        check_name("variant.name", self.name)
        if self.version < 1:
            raise InvalidInputError.of("variant.version", self.version, "1 or more")

    @property
    def id(self) -> str:
        """``task/model/name@version``: the key in profiles, views and receipts."""
        return f"{self.task}/{self.model}/{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A kind of hardware that a worker owns.

    Attributes:
        name: ``cpu-1`` is one CPU core, ``cpu-2`` two, ``h200`` a GPU.
        kind: ``cpu``, ``gpu`` or ``npu``.
        threads: intra-op threads a variant runs with there.
    """

    name: str
    kind: str
    threads: int
    memory_bytes: int
    price_usd_per_hour: float
    power_w: float

    def cost_usd(self, busy_s: float) -> float:
        """The price of ``busy_s`` seconds of the device."""
        return self.price_usd_per_hour * busy_s / 3600.0


class Placement(NamedTuple):
    """(variant, device class): the unit that is profiled, predicted and chosen.

    A named tuple, as it is looked up for each batch, and for each instance in a control tick.
    """

    variant_id: str
    device_class: str


WHEN_LATE = ("refuse", "serve")
OFFLINE = -1
"""The priority of offline queries."""


@dataclass(frozen=True, slots=True)
class SLO:
    """A query's limits; each may be left out.

    Attributes:
        min_accuracy: per cent.
        max_cost_usd: price of the device time the query may take.
        priority: 0 (default) to 9; more is more urgent. -1 is for offline queries, which get what
            all others leave.
        when_late: what is to become of it if it cannot be in time, ``refuse`` or ``serve``; None:
            see ``serves_late``.
    """

    latency_ms: float | None = None
    min_accuracy: float | None = None
    max_cost_usd: float | None = None
    priority: int = 0
    when_late: str | None = None

    def __post_init__(self) -> None:
        _check_limit("latency_ms", self.latency_ms, "more than 0, up to 3600000 (an hour)", 3.6e6)
        _check_limit("min_accuracy", self.min_accuracy, "0 to 100 (per cent)", 100.0, zero=True)
        _check_limit("max_cost_usd", self.max_cost_usd, "more than 0, up to 1000000", 1e6)
        if type(self.priority) is not int or not OFFLINE <= self.priority <= 9:
            allowed = f"a whole number, 0 to 9, or {OFFLINE} for offline queries"
            raise InvalidInputError.of("priority", self.priority, allowed)
        if self.when_late not in (None, *WHEN_LATE):
            raise InvalidInputError.of("when_late", self.when_late, " or ".join(WHEN_LATE))

    @property
    def serves_late(self) -> bool:
        """Whether a late answer is better than none: unless said, where no deadline was named."""
        if self.when_late is None:
            return self.latency_ms is None
        return self.when_late == "serve"


def _check_limit(
    field: str, value: float | None, allowed: str, most: float, zero: bool = False
) -> None:
    if value is None:
        return
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (0.0 < value <= most or (zero and value == 0.0))
    ):
        raise InvalidInputError.of(field, value, allowed, "Leave it out for no limit.")
