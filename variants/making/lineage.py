"""Where a made model comes from, in full: enough to make it again, bit for bit."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import modelless
from modelless.variants.making.recipe import Step


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A maker's name and every setting it had, as JSON has them."""

    maker: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lineage:
    """A made model's origin.

    Attributes:
        source_sha256: of the ONNX file it was made of.
        steps: in order.
        tools: versions of what its bytes depend on, by package.
        machine: kind of processor, as ``platform.machine`` names it. Measured ranges are sums of
            vector units, whose width may change the last bit even within a kind.
        calibration_sha256: of the calibration data; None if no step looked at any.
    """

    source_sha256: str
    steps: tuple[StepRecord, ...]
    tools: Mapping[str, str]
    machine: str
    calibration_sha256: str | None

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Lineage:
        """The lineage of which ``asdict`` made a document; TypeError or KeyError for any other."""
        steps = tuple(StepRecord(**step) for step in document["steps"])
        return cls(**{**document, "steps": steps})

    @property
    def key(self) -> str:
        """Hex sha256 of the lineage as JSON: under it, the result is found again."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def lineage_of(source_sha256: str, steps: Sequence[Step], calibration_sha256: str) -> Lineage:
    """The lineage of what ``steps`` make here and now."""
    makers = [step.with_settings for step in steps]
    measured = any(maker.needs_calibration for maker in makers)
    return Lineage(
        source_sha256=source_sha256,
        steps=tuple(StepRecord(step.maker, step.settings) for step in steps),
        tools=tool_versions({"onnx", *(tool for maker in makers for tool in maker.tools)}),
        machine=platform.machine(),
        calibration_sha256=calibration_sha256 if measured else None,
    )


def tool_versions(names: set[str]) -> dict[str, str]:
    """Versions by import name, modelless among them.

    ``absent`` stands for what is not installed, ``unknown`` for what does not say its version.
    """
    found = {"modelless": modelless.__version__}
    for name in sorted(names):
        try:
            found[name] = str(getattr(import_module(name), "__version__", "unknown"))
        except ImportError:
            found[name] = "absent"
    return found
