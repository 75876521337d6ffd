"""The seam: a maker turns one ONNX model into another. And the makers by name.

A maker is a frozen Pydantic model: its fields are its settings, which come from a recipe. Each
maker has a file of its own, which cites its source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from onnx import ModelProto
from pydantic import BaseModel, ConfigDict, ValidationError

from modelless.common.errors import InvalidInputError
from modelless.common.plugins import Plugins
from modelless.common.settings_files import problems
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.vocabulary import Precision


@dataclass(frozen=True, slots=True)
class Made:
    """The result of a maker.

    Attributes:
        model: the new model.
        notes: what a person should know of it, a sentence each: what was done, what it will not
            bring.
    """

    model: ModelProto
    notes: tuple[str, ...] = ()


class Maker(BaseModel, ABC):
    """Turns a model into another one. Equal settings, model and data give equal bytes.

    Attributes:
        name: as recipes write it.
        precision: of the weights it leaves; None if it leaves them as they are.
        lossless: the outputs must stay as they are, up to rounding; the builder verifies it.
        needs_calibration: it looks at calibration data; else it is handed none.
        needs_answers: it looks at what the source of the whole chain answers to them too.
        tools: import names of the packages that its result depends on; their versions are
            recorded.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: ClassVar[str]
    precision: ClassVar[Precision | None] = None
    lossless: ClassVar[bool] = False
    needs_calibration: ClassVar[bool] = False
    needs_answers: ClassVar[bool] = False
    tools: ClassVar[tuple[str, ...]] = ("onnx", "numpy")

    @property
    def resolution_px(self) -> int | None:
        """Side of the network's own input that it sets, px; None if it sets none."""
        return None

    @abstractmethod
    def make(self, model: ModelProto, calibration: CalibrationData) -> Made:
        """The new model.

        Args:
            model: the maker's own copy, which it may change; every node has a unique name.
            calibration: inputs as they will come, at least one, with the source's answers to them
                for a maker that asks for those; empty for a maker that asks for neither.

        Raises:
            InvalidInputError: this maker cannot do that to this model; says why.
            EnvironmentUnfitError: a package it needs is not installed.
        """


_HOME: Final = "modelless.variants.making.makers"

MAKERS: Final = Plugins(
    "maker",
    {
        "bf16": f"{_HOME}.bf16:Bf16",
        "distil": f"{_HOME}.distil:Distil",
        "fine-tune": f"{_HOME}.fine_tune:FineTune",
        "fp16": f"{_HOME}.fp16:Fp16",
        "int4-weights": f"{_HOME}.int4_weights:Int4Weights",
        "int8-dynamic": f"{_HOME}.int8_dynamic:Int8Dynamic",
        "int8-static": f"{_HOME}.int8_static:Int8Static",
        "optimise": f"{_HOME}.optimise:Optimise",
        "prune-magnitude": f"{_HOME}.prune_magnitude:PruneMagnitude",
        "prune-structured": f"{_HOME}.prune_structured:PruneStructured",
        "resolution": f"{_HOME}.resolution:Resolution",
    },
    group="modelless.makers",
    takes_paths=True,
)


def find_maker(name: str) -> type[Maker]:
    """The maker called ``name``; see ``Plugins.find_class`` for its errors."""
    maker: type[Maker] = MAKERS.find_class(name, Maker)
    return maker


def build_maker(name: str, settings: Mapping[str, Any], place: str = "") -> Maker:
    """The maker called ``name`` with these settings.

    Args:
        name: a built-in one, one that a package offers, or ``module:Class``.
        settings: the maker's fields.
        place: where the recipe names it; begins the errors.

    Raises:
        NotFoundError, InvalidInputError: as ``find_maker``; or a setting that it does not have, or
            a value that it does not take.
    """
    maker = find_maker(name)
    try:
        return maker(**settings)
    except ValidationError as error:
        known = ", ".join(maker.model_fields) or "(none)"
        raise InvalidInputError(
            f"{place or name}: {problems(error)}; {name} has the settings {known}"
        ) from None


# Messages of a maker that takes long, such as how many steps of training are done. They go through
# a context variable, so that ``Maker.make``, which most makers end quickly, has no argument for it.

_RECEIVER: Final[ContextVar[Callable[[str], None] | None]] = ContextVar("receiver", default=None)


@contextmanager
def receive_messages(receiver: Callable[[str], None]) -> Iterator[None]:
    """Call ``receiver`` with each message that a maker sends within the block."""
    token = _RECEIVER.set(receiver)
    try:
        yield
    finally:
        _RECEIVER.reset(token)


def send_message(message: str) -> None:
    """Send a message to the receiver, if there is one."""
    receiver = _RECEIVER.get()
    if receiver is not None:
        receiver(message)
