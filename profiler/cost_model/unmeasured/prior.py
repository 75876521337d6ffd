"""The shipped prior: a small, versioned file of figures.

``benchmarks/profiling/make_prior.py`` makes it. It holds the roofline's constants by device
kind, the variances of the covariance by level and term, and the names of the tables they come from.
It holds no measurements and no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from modelless.common.errors import InvalidInputError
from modelless.profiler.cost_model.unmeasured.features import LEVELS
from modelless.profiler.cost_model.unmeasured.kernel import TERMS, Kernel
from modelless.profiler.cost_model.unmeasured.roofline import COMPONENTS, Roofline

FORMAT = 1
KINDS = ("cpu", "gpu", "npu")
_MOST_BYTES = 1 << 20
_MOST_VARIANCE = 100.0  # squared log latency; with more, equal points cannot be told apart
_MOST_MS = 1e6  # of a component


@dataclass(frozen=True, slots=True)
class Prior:
    """The figures that predictions start from before anything is measured.

    Attributes:
        kernel: the covariance.
        roofline: the analytical estimate.
        version: version of the figures.
    """

    kernel: Kernel
    roofline: Roofline
    version: str


@cache
def shipped_prior() -> Prior:
    """Returns the prior of this package.

    Raises:
        InvalidInputError: the package's file is damaged; see ``read_prior``.
    """
    resource = files("modelless.profiler.cost_model.unmeasured").joinpath("data", "prior.json")
    return parse_prior(resource.read_bytes(), "the package's prior.json")


def read_prior(path: Path) -> Prior:
    """Returns the prior in a file.

    Raises:
        InvalidInputError: the file cannot be read or is no prior; the message names the field.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInputError.of(str(path), str(error), "a readable prior file") from error
    return parse_prior(content, str(path))


def parse_prior(content: bytes, name: str) -> Prior:
    """Returns the prior in a file's content; errors use ``name``. Raises as ``read_prior`` does."""
    if len(content) > _MOST_BYTES:
        raise InvalidInputError.of(name, f"more than {_MOST_BYTES} bytes", "a small JSON file")
    try:
        document = json.loads(content)
        digest = document.pop("sha256")
        if digest != digest_of(document):
            raise InvalidInputError.of(f"{name}: sha256", digest, digest_of(document), _MEND)
        if document["format"] != FORMAT:
            raise InvalidInputError.of(f"{name}: format", document["format"], str(FORMAT), _MEND)
        return Prior(
            Kernel.of(
                {
                    level: {
                        term: _number(name, document, "variances", level, term, most=_MOST_VARIANCE)
                        for term in TERMS
                    }
                    for level in LEVELS
                },
                _number(name, document, "noise_variance", least=1e-6, most=_MOST_VARIANCE),
            ),
            Roofline(
                {
                    kind: np.array(
                        [
                            _number(name, document, "roofline", kind, one, most=_MOST_MS)
                            for one in COMPONENTS
                        ]
                    )
                    for kind in KINDS
                }
            ),
            str(document["version"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError.of(name, repr(error), "a prior file, undamaged", _MEND) from error


_MEND = "Install modelless again, or make the file with benchmarks/profiling/make_prior.py."


def digest_of(document: Mapping[str, Any]) -> str:
    """Returns the SHA-256 digest of a prior's content without the digest itself."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _number(name: str, document: Any, *keys: str, most: float, least: float = 0.0) -> float:
    for key in keys:
        document = document[key]
    value = float(document)
    if not least <= value <= most:
        allowed = f"a number from {least:g} to {most:g}"
        raise InvalidInputError.of(f"{name}: {'.'.join(keys)}", document, allowed, _MEND)
    return value
