"""Model-variants as in INFaaS's autoscaler: variants on device classes, with throughput.

See ``infaas``; the constants are those of its paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from modelless.policies.scopes import scopes_of
from modelless.policies.views import ClusterView, Demand, VariantFacts
from modelless.variants.vocabulary import Placement

_LOOSE_S: Final = 0.1  # latency limit beyond which accelerators are avoided
_MOST_BATCH: Final = 32
_LEAST_PER_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """A variant on a device class, which INFaaS calls a model-variant.

    Attributes:
        item_per_s: throughput of one replica.
        is_dear: whether the device class is an accelerator.
        max_batch: most items in a batch there.
    """

    placement: Placement
    accuracy_percent: float
    latency_s: float
    load_s: float
    memory_bytes: float
    item_per_s: float
    is_dear: bool
    max_batch: int

    @property
    def architecture(self) -> str:
        """The model whose variants may replace each other by upgrade and downgrade."""
        return self.placement.variant_id.rpartition("/")[0]

    def meets(self, demand: Demand) -> bool:
        """Returns whether it is quick and accurate enough."""
        return (
            self.latency_s <= demand.latency_s
            and self.accuracy_percent >= demand.min_accuracy_percent
        )

    def is_saved(self, demand: Demand) -> bool:
        """Returns whether it is on an accelerator that a demand with so much time should avoid."""
        return self.is_dear and demand.latency_s > _LOOSE_S and self.latency_s < _LOOSE_S


def model_variants(
    view: ClusterView, classes: Iterable[str]
) -> tuple[dict[Placement, ModelVariant], dict[str, list[ModelVariant]]]:
    """Returns the model-variants of the classes by placement and by scope."""
    models: dict[Placement, ModelVariant] = {}
    by_scope: dict[str, list[ModelVariant]] = {}
    for variant in view.variants:
        scopes = scopes_of(variant.variant_id)
        for name in classes:
            model = _model_variant(variant, name, view) if name in view.device_classes else None
            if model is not None:
                models[model.placement] = model
                for scope in scopes:
                    by_scope.setdefault(scope, []).append(model)
    return models, by_scope


def _model_variant(variant: VariantFacts, name: str, view: ClusterView) -> ModelVariant | None:
    """Returns the variant on the class; None if it cannot run there or figures are missing."""
    latency_s = variant.latency_s.get(name, inf)
    load_s = variant.load_s.get(name, inf)
    memory_bytes = variant.memory_bytes.get(name, inf)
    if not (0.0 < latency_s < inf and 0.0 <= load_s < inf and 0.0 <= memory_bytes < inf):
        return None
    is_dear = view.device_classes[name].kind != "cpu"
    batch_s = variant.batch_s.get(name, ())
    batch = min(len(batch_s) - 1, _MOST_BATCH) if is_dear else 1
    seconds = batch_s[batch] if 1 <= batch < len(batch_s) else inf
    item_per_s = batch / seconds if 0.0 < seconds < inf else 1.0 / latency_s
    return ModelVariant(
        Placement(variant.variant_id, name),
        variant.accuracy_percent,
        latency_s,
        load_s,
        memory_bytes,
        max(item_per_s, _LEAST_PER_S),
        is_dear,
        max(len(batch_s) - 1, 1),
    )
