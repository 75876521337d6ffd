"""Where registered variants come from: their lineage, kept in the history beside them.

With it goes what a lineage is rebuilt from: the source and the calibration data lie in the artifact
store, so nothing else is needed to make a variant again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select

from modelless.common.errors import IntegrityError, NotFoundError
from modelless.variants.artifacts import ArtifactStore
from modelless.variants.making.builder import rebuild
from modelless.variants.making.calibration import CalibrationData, from_npz
from modelless.variants.making.fidelity import Fidelity
from modelless.variants.making.lineage import Lineage
from modelless.variants.store import HistoryRow, Store
from modelless.variants.store.rows import MADE
from modelless.variants.vocabulary import Variant


@dataclass(frozen=True, slots=True)
class Origin:
    """How a variant was made.

    Attributes:
        source: what it was made of, as the user named it.
        framework: of the source; ``onnx`` where nothing had to be converted.
        tools: versions of what converted it, by package; empty where nothing did.
        chain: the recipe's name of it.
        lineage: in full.
        calibration_file_sha256: the artifact that holds the calibration data.
        notes: what its makers said.
        fidelity: its engine's answers against the source's.
    """

    source: str
    framework: str
    tools: Mapping[str, str]
    chain: str
    lineage: Lineage
    calibration_file_sha256: str
    notes: tuple[str, ...]
    fidelity: Fidelity

    def row(self, variant_id: str) -> HistoryRow:
        """The history's row."""
        reason = f"made of {self.source}"
        return HistoryRow(kind=MADE, subject=variant_id, reason=reason, details=asdict(self))


def find_origin(store: Store, variant_id: str) -> Origin | None:
    """The newest origin of a variant; None if it was not made here, or of another version's form.

    Raises:
        StoreError: the store cannot be read.
    """
    query = (
        select(HistoryRow)
        .where(HistoryRow.kind == MADE, HistoryRow.subject == variant_id)
        .order_by(HistoryRow.id.desc())
        .limit(1)
    )
    with store.session() as session:
        row = session.scalars(query).first()
    if row is None:
        return None
    details: dict[str, Any] = dict(row.details)
    try:
        lineage = Lineage.of_document(details.pop("lineage"))
        fidelity = Fidelity(**details.pop("fidelity"))
        notes = tuple(details.pop("notes"))
        return Origin(lineage=lineage, fidelity=fidelity, notes=notes, **details)
    except (KeyError, TypeError):
        return None


def rebuild_variant(store: Store, artifacts: ArtifactStore, variant: Variant) -> bytes:
    """The very bytes of a variant that was made here, made again; its own file is not looked at.

    Raises:
        NotFoundError: it was not made here, so nobody knows of what.
        IntegrityError: a tool, the kind of processor, or what it was made of is another one now;
            or the result is not the file that was registered.
    """
    origin = find_origin(store, variant.id)
    if origin is None:
        raise NotFoundError(
            f"{variant.id} has no lineage: it was not made by 'modelless make'. "
            "Only what was can be rebuilt."
        )
    lineage = origin.lineage
    calibration = CalibrationData()
    if lineage.calibration_sha256 is not None:
        calibration = from_npz(artifacts.read(origin.calibration_file_sha256))
    made = rebuild(lineage, artifacts.read(lineage.source_sha256), calibration)
    found = hashlib.sha256(made).hexdigest()
    if found != variant.artifact_sha256:
        raise IntegrityError(
            f"{variant.id}: rebuilt with the same source, tools and data, it has the sha256 "
            f"{found}; registered: {variant.artifact_sha256}. Measured ranges "
            "are sums of vector units, whose width may change the last bit: was it made on "
            "another processor?"
        )
    return made
