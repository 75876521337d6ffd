"""Tells the cost model how long batches took, and decides how soon that counts."""

from __future__ import annotations

from modelless.controller.dispatch.instances import ReadyInstances
from modelless.controller.dispatch.queues import Batch
from modelless.variants.vocabulary import Placement


class OnlineLearner:
    """Tells the cost model of ``instances`` how long batches took.

    Drivers renew the estimates once a second (``LoadChanged``). While few batches were observed,
    each says much, and a second is long: where a profile is wrong, as where neighbours slow others
    more than was measured, hundreds of queries would get predictions that cannot hold. So the
    estimates are also renewed whenever the number of observed batches has doubled. The error of a
    mean falls with the root of that number, so each renewal corrects an equal part of the error,
    and a gateway renews some twenty times in its life. The last case is an outcome that the cost
    model says makes them obsolete.

    Args:
        instances: has the cost model and the estimates.
    """

    def __init__(self, instances: ReadyInstances) -> None:
        self._instances = instances
        self._taught = instances.cost_model
        self._observed = 0
        self._renew_at = 1

    def observe_batch(self, batch: Batch, busy_s: float) -> None:
        instances = self._instances
        cost_model = instances.cost_model
        if cost_model is not self._taught:  # a new one, which has observed nothing yet
            self._taught, self._observed, self._renew_at = cost_model, 0, 1
        placement = Placement(batch.variant_id, batch.device_class)
        is_obsolete = cost_model.observe(placement, batch.items, instances.load, busy_s, batch.size)
        self._observed += 1
        if self._observed == self._renew_at:
            self._renew_at *= 2
            is_obsolete = True
        if is_obsolete:
            instances.refresh_estimates(instances.load)
