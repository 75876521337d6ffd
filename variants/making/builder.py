"""Makes what a recipe says, shares what chains have in common, and goes on where it was stopped.

Every step's result lies in a work folder under the hash of its lineage: source, steps so far with
their settings, tools, calibration data. Chains that begin alike therefore share what they begin
with, a second build finds what the first one made, and other settings never meet an old result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelless.variants.artifacts import ArtifactStore, write_whole
from modelless.variants.errors import (
    IntegrityError,
    InvalidInputError,
    ModellessError,
    StoreError,
)
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.canonical import read_model, write_model
from modelless.variants.making.fidelity import Fidelity, Outputs, compare, run_all
from modelless.variants.making.lineage import Lineage, lineage_of
from modelless.variants.making.recipe import Recipe, Step, parse_step
from modelless.variants.making.session import Session
from modelless.variants.making.verification import Tolerance, verify_conversion

Progress = Callable[[str, int, int], None]
"""Called with the stage in words, variants done, and variants in all."""

_LOSSLESS = Tolerance(absolute=1e-4, relative=1e-3)  # fused operators round in another order


@dataclass(frozen=True, slots=True)
class MadeVariant:
    """A variant that was made.

    Attributes:
        name: the recipe's.
        path: its ONNX file in the work folder, named by its hash; read-only.
        artifact_sha256: of the file.
        lineage: what it was made of, and how.
        notes: what its makers said, step by step.
        fidelity: its outputs against the source's on the calibration data; None without data.
    """

    name: str
    path: Path
    artifact_sha256: str
    lineage: Lineage
    notes: tuple[str, ...]
    fidelity: Fidelity | None


@dataclass(frozen=True, slots=True)
class RefusedVariant:
    """A variant that this model does not allow.

    Attributes:
        name: the recipe's.
        reason: why, in the words of the maker that refused.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Result:
    sha256: str
    notes: tuple[str, ...]


class Builder:
    """Makes variants in a work folder.

    One folder serves any number of sources and recipes, and builds at the same time: a file appears
    whole or not at all, and what lies under a name is checked before it is used.
    """

    def __init__(self, folder: Path) -> None:
        """Work in ``folder``, made when first written to."""
        self._artifacts = ArtifactStore(str(folder / "artifacts"))
        self._steps = folder / "steps"

    def build(
        self,
        recipe: Recipe,
        source: bytes,
        calibration: CalibrationData,
        on_progress: Progress | None = None,
    ) -> Iterator[MadeVariant | RefusedVariant]:
        """Make the recipe's variants, one by one.

        Args:
            source: the trained model, an ONNX file's bytes.
            calibration: inputs as they will come; may be empty for makers that need none.
            on_progress: told of every step that is begun, if given.

        Raises:
            IntegrityError: the source is no model that may run.
            InvalidInputError: the source does not take the calibration data.
            StoreError: the work folder cannot be written; what is in it stays whole.
        """
        read_model(source)
        wanted = run_all(Session(source), calibration) if calibration.feeds else None
        refusals: dict[str, str] = {}
        for done, (name, chain) in enumerate(recipe.chains.items()):

            def told(words: str, name: str = name, done: int = done) -> None:
                if on_progress is not None:
                    on_progress(f"{name}: {words}", done, len(recipe.chains))

            try:
                yield self._variant(name, chain, source, calibration, wanted, refusals, told)
            except StoreError:
                raise
            except ModellessError as error:
                yield RefusedVariant(name, str(error))

    def _variant(
        self,
        name: str,
        chain: Sequence[Step],
        source: bytes,
        calibration: CalibrationData,
        wanted: Outputs | None,
        refusals: dict[str, str],
        told: Callable[[str], None],
    ) -> MadeVariant:
        source_sha256 = hashlib.sha256(source).hexdigest()
        result, notes = self._write(write_model(read_model(source)), ()), list[str]()
        lineage = lineage_of(source_sha256, (), calibration.sha256)
        for count in range(1, len(chain) + 1):
            lineage = lineage_of(source_sha256, chain[:count], calibration.sha256)
            if lineage.key in refusals:
                raise InvalidInputError(refusals[lineage.key])
            found = self._find(lineage)
            if found is None:
                told(str(chain[count - 1]))
                try:
                    made, said = run_step(
                        chain[count - 1], self._artifacts.read(result.sha256), calibration
                    )
                except ModellessError as error:
                    refusals[lineage.key] = str(error)
                    raise
                found = self._write(made, said)
                self._record(lineage, found)
            result = found
            notes += result.notes
        made = self._artifacts.read(result.sha256)
        fidelity = None
        if wanted is not None:
            told("comparing with the source")
            if all(step.with_settings.lossless for step in chain):
                verify_conversion(Session(source).run, made, calibration, _LOSSLESS)
            fidelity = compare(wanted, run_all(Session(made), calibration))
        path = self._artifacts.fetch(result.sha256)
        return MadeVariant(name, path, result.sha256, lineage, tuple(notes), fidelity)

    def _find(self, lineage: Lineage) -> _Result | None:
        """What was made before, if its record and its file are there and whole."""
        try:
            record = json.loads((self._steps / f"{lineage.key}.json").read_bytes())
            self._artifacts.fetch(record["artifact_sha256"])
            return _Result(record["artifact_sha256"], tuple(record["notes"]))
        except (OSError, ValueError, KeyError, TypeError, IntegrityError, InvalidInputError):
            return None

    def _write(self, onnx_bytes: bytes, notes: tuple[str, ...]) -> _Result:
        return _Result(self._artifacts.put(onnx_bytes), notes)

    def _record(self, lineage: Lineage, result: _Result) -> None:
        path = self._steps / f"{lineage.key}.json"
        record = {
            "artifact_sha256": result.sha256,
            "notes": result.notes,
            "lineage": json.loads(lineage.to_json()),
        }
        try:
            write_whole(path, json.dumps(record, indent=1).encode())
        except OSError as error:
            raise StoreError(
                f"The work folder {path.parent} cannot be written ({error.strerror or error}). "
                "Free some space or make it writable, then repeat: what was made is kept."
            ) from error


def run_step(
    step: Step, onnx_bytes: bytes, calibration: CalibrationData
) -> tuple[bytes, tuple[str, ...]]:
    """One step's result, as bytes, and what its maker notes.

    Raises:
        InvalidInputError: the maker refuses, or a tool that it uses fails.
        EnvironmentUnfitError: a package is missing.
        IntegrityError: what it made is no valid model.
    """
    maker = step.with_settings
    if maker.needs_calibration and not calibration.feeds:
        raise InvalidInputError.of(
            f"{step.maker}: calibration data", "none", "inputs as they will come, one call at least"
        )
    given = calibration if maker.needs_calibration else CalibrationData()
    try:
        made = maker.make(read_model(onnx_bytes), given)
    except ModellessError:
        raise
    except Exception as error:  # whatever a maker's tools raise on a model they were not made for
        raise InvalidInputError(
            f"{step.maker}: it fails on this model: {type(error).__name__}: {error}"
        ) from error
    return write_model(made.model), made.notes


def rebuild(lineage: Lineage, source: bytes, calibration: CalibrationData) -> bytes:
    """The very bytes that a lineage stands for, made again.

    Raises:
        IntegrityError: another source, other calibration data or other tools: the result would not
            be the same. Names what differs.
    """
    steps = [
        parse_step({record.maker: dict(record.settings)}, f"lineage.steps[{index}]")
        for index, record in enumerate(lineage.steps)
    ]
    here = lineage_of(hashlib.sha256(source).hexdigest(), steps, calibration.sha256)
    for field in ("source_sha256", "calibration_sha256", "tools", "machine"):
        recorded, found = getattr(lineage, field), getattr(here, field)
        if recorded != found:
            raise IntegrityError(
                f"lineage.{field}: got {found}; allowed: {recorded}, with which it was made."
            )
    onnx_bytes = write_model(read_model(source))
    for step in steps:
        onnx_bytes, _ = run_step(step, onnx_bytes, calibration)
    return onnx_bytes
