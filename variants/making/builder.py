"""Makes what a recipe says, shares what chains have in common, and goes on where it was stopped.

Every step's result lies in a work folder under the hash of its lineage: source, steps so far with
their settings, tools, calibration data. Chains that begin alike therefore share what they begin
with, a second build finds what the first one made, and other settings never meet an old result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from modelless.common.errors import (
    EnvironmentUnfitError,
    IntegrityError,
    InvalidInputError,
    ModellessError,
    StoreError,
)
from modelless.common.files import write_whole
from modelless.variants.artifacts import ArtifactStore, check_sha256
from modelless.variants.graphs.canonical import read_model, write_model
from modelless.variants.making.bounded_memory import Answers
from modelless.variants.making.calibration import CalibrationData
from modelless.variants.making.fidelity import Fidelity, compare, run_all
from modelless.variants.making.lineage import Lineage, lineage_of
from modelless.variants.making.maker import receive_messages
from modelless.variants.making.recipe import Recipe, Step, parse_step
from modelless.variants.making.session import Session
from modelless.variants.making.verification import Tolerance, verify_conversion
from modelless.variants.vocabulary import Precision, Task

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
        precision: of its weights; None if no step changed the source's.
        resolution_px: side of the network's own input; None if no step set it.
        lineage: what it was made of, and how.
        notes: what its makers said, step by step.
        fidelity: its outputs against the source's on the calibration data; None without data.
    """

    name: str
    path: Path
    artifact_sha256: str
    precision: Precision | None
    resolution_px: int | None
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


@dataclass(frozen=True, slots=True)
class _Chains:
    """The data that the chains of one build share.

    Attributes:
        source: as handed in.
        base_sha256: of its canonical form, with which every chain begins.
        calibration: with the source's answers, if a maker asks for them.
        wanted: the source's answers; None without calibration data.
        task: says what the answers are; may be None.
        refusals: reasons by the lineage of what was refused.
    """

    source: bytes
    base_sha256: str
    calibration: CalibrationData
    wanted: Answers | None = None
    task: Task | None = None
    refusals: dict[str, str] = field(default_factory=dict)

    def lineage(self, steps: Sequence[Step]) -> Lineage:
        return lineage_of(hashlib.sha256(self.source).hexdigest(), steps, self.calibration.sha256)


class Builder:
    """Makes variants in a work folder.

    One folder serves any number of sources and recipes, and builds at the same time: a file appears
    whole or not at all, and what lies under a name is checked before it is used.
    """

    def __init__(self, folder: Path, artifacts: ArtifactStore | None = None) -> None:
        """Work in ``folder``, made when first written to.

        Args:
            folder: where it is noted what was made.
            artifacts: where the files go; a folder of its own in ``folder`` by default.
        """
        self._artifacts = artifacts or ArtifactStore(folder / "artifacts")
        self._steps = folder / "steps"

    def build(
        self,
        recipe: Recipe,
        source: bytes,
        calibration: CalibrationData,
        on_progress: Progress | None = None,
        task: Task | None = None,
    ) -> Iterator[MadeVariant | RefusedVariant]:
        """Make the recipe's variants, one by one.

        Args:
            source: the trained model, an ONNX file's bytes.
            calibration: inputs as they will come; may be empty for makers that need none.
            on_progress: told of every step that is begun, if given.
            task: says whether answers are texts, which are compared as such.

        Raises:
            IntegrityError: the source is no model that may run.
            InvalidInputError: the source does not take the calibration data.
            StoreError: the work folder cannot be written; what is in it stays whole.
        """
        base = self._artifacts.put(write_model(read_model(source)))
        steps = [step for chain in recipe.chains.values() for step in chain]
        if any(step.with_settings.needs_answers for step in steps):
            calibration = with_answers(source, calibration)
        wanted = Answers(Session(source), calibration) if calibration.feeds else None
        chains = _Chains(source, base, calibration, wanted, task)
        self._record(chains.lineage(()), _Result(base, ()))
        for done, (name, chain) in enumerate(recipe.chains.items()):

            def told(words: str, name: str = name, done: int = done) -> None:
                if on_progress is not None:
                    on_progress(f"{name}: {words}", done, len(recipe.chains))

            found: MadeVariant | RefusedVariant
            try:
                found = self._variant(name, chain, chains, told)
            except StoreError:
                raise
            except ModellessError as error:
                found = RefusedVariant(name, str(error))
            yield found

    def _variant(
        self, name: str, steps: Sequence[Step], chains: _Chains, told: Callable[[str], None]
    ) -> MadeVariant:
        result, notes = _Result(chains.base_sha256, ()), list[str]()
        lineage = chains.lineage(())
        for count, step in enumerate(steps, start=1):
            lineage = chains.lineage(steps[:count])
            result = self._step(step, lineage, result, chains, told)
            notes += result.notes
        made = self._artifacts.read(result.sha256)
        fidelity = None
        if chains.wanted is not None:
            told("comparing with the source")
            if all(step.with_settings.lossless for step in steps):
                source = Session(chains.source)
                verify_conversion(source.run, made, chains.wanted.calls, _LOSSLESS)
            found = map(Session(made).run, chains.wanted.calls.feeds)  # nothing of it is kept
            fidelity = compare(chains.wanted, found, chains.task)
        makers = [step.with_settings for step in steps]
        return MadeVariant(
            name=name,
            path=self._artifacts.fetch(result.sha256),
            artifact_sha256=result.sha256,
            precision=next((m.precision for m in reversed(makers) if m.precision), None),
            resolution_px=next(
                (m.resolution_px for m in reversed(makers) if m.resolution_px), None
            ),
            lineage=lineage,
            notes=tuple(notes),
            fidelity=fidelity,
        )

    def _step(
        self,
        step: Step,
        lineage: Lineage,
        before: _Result,
        chains: _Chains,
        told: Callable[[str], None],
    ) -> _Result:
        """The step's result, found or made; what was refused once is refused again, untried."""
        if lineage.key in chains.refusals:
            raise InvalidInputError(chains.refusals[lineage.key])
        found = self._find(lineage)
        if found is not None:
            return found
        told(str(step))
        try:
            with receive_messages(lambda words: told(f"{step.maker}: {words}")):
                made, notes = run_step(
                    step, self._artifacts.read(before.sha256), chains.calibration
                )
        except ModellessError as error:
            chains.refusals[lineage.key] = str(error)
            raise
        result = _Result(self._artifacts.put(made), notes)
        self._record(lineage, result)
        return result

    def _find(self, lineage: Lineage) -> _Result | None:
        """The variant made before, if its record and its file are there and whole."""
        try:
            record = json.loads((self._steps / f"{lineage.key}.json").read_bytes())
            self._artifacts.fetch(record["artifact_sha256"])
            return _Result(record["artifact_sha256"], tuple(record["notes"]))
        except (OSError, ValueError, KeyError, TypeError, IntegrityError, InvalidInputError):
            return None

    def _record(self, lineage: Lineage, result: _Result) -> None:
        path = self._steps / f"{lineage.key}.json"
        record = {
            "artifact_sha256": result.sha256,
            "notes": result.notes,
            "lineage": asdict(lineage),
        }
        try:
            write_whole(path, json.dumps(record, indent=1).encode())
        except OSError as error:
            raise StoreError(
                f"The work folder {path.parent} cannot be written ({error.strerror or error}). "
                "Free some space or make it writable, then repeat: what was made is kept."
            ) from error


def forget_steps(folder: Path, sources: Collection[str]) -> set[str]:
    """Forget what steps made of sources; returns the sha256 of each result, whose file stays.

    Args:
        folder: a builder's.
        sources: sha256 of ONNX files.
    """
    found = set()
    for path in (folder / "steps").glob("*.json"):
        try:
            record = json.loads(path.read_bytes())
            if record["lineage"]["source_sha256"] in sources:
                found.add(check_sha256(record["artifact_sha256"]))
                path.unlink()
        except (OSError, ValueError, KeyError, TypeError, InvalidInputError):
            continue  # a damaged record says nothing
    return found


def with_answers(source: bytes, calibration: CalibrationData) -> CalibrationData:
    """The data, with what ``source`` answers to them.

    Raises:
        InvalidInputError: it does not take them.
    """
    if not calibration.feeds:
        return calibration
    return replace(calibration, answers=tuple(run_all(Session(source), calibration)))


def run_step(
    step: Step, onnx_bytes: bytes, calibration: CalibrationData
) -> tuple[bytes, tuple[str, ...]]:
    """One step's result, as bytes, and what its maker notes.

    Args:
        calibration: see ``with_answers`` for makers that ask for the source's answers.

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
    if maker.needs_answers and len(calibration.answers) != len(calibration.feeds):
        raise InvalidInputError.of(
            f"{step.maker}: the source's answers", len(calibration.answers), "one a call"
        )
    given = calibration if maker.needs_calibration else CalibrationData()
    try:
        made = maker.make(read_model(onnx_bytes), given)
    except ModellessError:
        raise
    except OSError as error:  # of a temporary file
        raise EnvironmentUnfitError(
            f"{step.maker}: {error}. Free some space, or set TMPDIR to a folder that has some."
        ) from error
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
    for part in ("source_sha256", "calibration_sha256", "tools", "machine"):
        recorded, found = getattr(lineage, part), getattr(here, part)
        if recorded != found:
            raise IntegrityError(
                f"lineage.{part}: got {found}; allowed: {recorded}, with which it was made."
            )
    onnx_bytes = write_model(read_model(source))
    if any(step.with_settings.needs_answers for step in steps):
        calibration = with_answers(source, calibration)
    for step in steps:
        onnx_bytes, _ = run_step(step, onnx_bytes, calibration)
    return onnx_bytes
