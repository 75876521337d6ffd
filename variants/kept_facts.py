"""The facts of variants' graphs: kept in the store, read from the files where they are absent."""

from __future__ import annotations

import contextlib

from sqlalchemy import select

from modelless.variants.artifacts import ArtifactStore
from modelless.variants.errors import IntegrityError, StoreError
from modelless.variants.graph_facts import GraphFacts, read_graph_facts
from modelless.variants.inspection import damage_refused, parse_onnx
from modelless.variants.store import Store, VariantRow
from modelless.variants.vocabulary import Variant


def facts_of_file(data: bytes, resolution_px: int | None) -> GraphFacts | None:
    """The facts of a file that is being registered; None if whoever vouched for it was wrong."""
    try:
        return _read(data, resolution_px, "ONNX file")
    except IntegrityError:
        return None


def facts_of_variant(store: Store, artifacts: ArtifactStore, variant: Variant) -> GraphFacts:
    """See ``Registry.graph_facts``, which checks that there is such a variant."""
    with store.session() as session:
        kept = session.scalar(select(VariantRow.graph_facts).where(VariantRow.id == variant.id))
    known = None if kept is None else GraphFacts.of_document(kept)
    if known is not None:
        return known
    data = artifacts.read(variant.artifact_sha256)
    facts = _read(data, variant.resolution_px, f"artifact of {variant.id}")
    with contextlib.suppress(StoreError), store.transaction() as session:  # of use all the same
        session.get_one(VariantRow, variant.id).graph_facts = facts.document()
    return facts


def _read(data: bytes, resolution_px: int | None, where: str) -> GraphFacts:
    model = parse_onnx(data, where)
    with damage_refused(where):
        return read_graph_facts(model, resolution_px=resolution_px)
