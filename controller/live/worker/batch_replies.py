"""A worker's answers to a gateway that has sent it a batch.

Every answer says how long the batches of others will keep the worker; so gateways take turns, and
one that finds itself alone may use both places (``dispatch/workers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from modelless.controller.dispatch.messages import WorkerReport
from modelless.variants.runtimes.runtime import Tensors


class TurnedBack(NamedTuple):
    """The worker has not accepted the batch.

    Attributes:
        others_s: seconds for which the accepted batches will keep the worker.
        holds: the worker's report, if the batch's variant is not ready there; else None.
    """

    others_s: float
    holds: WorkerReport | None = None


class Ran(NamedTuple):
    """The batch has run.

    Attributes:
        busy_s, waited_s: seconds the device was busy with it, and it had waited before.
        others_s: seconds for which the other accepted batches will keep the worker.
    """

    busy_s: float
    waited_s: float
    outputs: Sequence[Tensors]
    others_s: float
