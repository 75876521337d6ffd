"""The seam: a maker turns one ONNX model into another.

A maker is a frozen pydantic model: its fields are its settings, read from a recipe and checked
there. One file a maker, with its source cited; ``catalog`` knows them by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from onnx import ModelProto
from pydantic import BaseModel, ConfigDict

from modelless.variants.making.calibration import CalibrationData
from modelless.variants.vocabulary import Precision


@dataclass(frozen=True, slots=True)
class Made:
    """What a maker hands back.

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
