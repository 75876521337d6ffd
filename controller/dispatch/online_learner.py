"""What outcomes teach the cost model, and how soon it counts."""

from __future__ import annotations

from modelless.controller.dispatch.instances import ReadyInstances
from modelless.controller.dispatch.queues import Batch
from modelless.variants.vocabulary import Placement


class OnlineLearner:
    """Tells a instances's cost model what batches took.

    Drivers have the instances ask for new estimates once a second. While few outcomes were seen, each
    says much, and a second is long: where a profile is wrong, as where neighbours slow each other
    more than was measured, hundreds of queries would be promised what cannot be. So the instances asks
    besides whenever there have been twice as many outcomes as the last time: the error of a mean
    goes with the root of their number, so each time as large a part of what was wrong is put right,
    and it happens some twenty times in a gateway's life.

    Args:
        instances: whose cost model is taught.
    """

    def __init__(self, instances: ReadyInstances) -> None:
        self._instances = instances
        self._taught = instances.cost_model
        self._outcomes = 0
        self._ask_at = 1

    def observe_batch(self, batch: Batch, busy_s: float) -> None:
        """A batch has kept its device busy for so long."""
        instances = self._instances
        cost_model = instances.cost_model
        if cost_model is not self._taught:  # another one, which knows nothing yet
            self._taught, self._outcomes, self._ask_at = cost_model, 0, 1
        placement = Placement(batch.variant_id, batch.device_class)
        cost_model.observe(placement, batch.items, instances.load, busy_s)
        self._outcomes += 1
        if self._outcomes == self._ask_at:
            self._ask_at *= 2
            instances.refresh_estimates(instances.load)
