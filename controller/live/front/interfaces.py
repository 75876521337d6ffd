"""What a frontend needs of the process around it, and the types that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from modelless.controller.api.v2_reply import Reply
from modelless.controller.live.front.console.pages import VariantRow
from modelless.variants.runtimes.runtime import Tensors

if TYPE_CHECKING:
    from modelless.controller.live.front.gateway import ControlRequests

Respond = Callable[[Reply], None]


class RunBatch(NamedTuple):
    """A batch for a worker, with its tensors."""

    batch_id: int
    worker_id: str
    variant_id: str
    inputs: Sequence[Tensors]


class Host(Protocol):
    """The process around a frontend.

    Attributes:
        cluster: answers what is of the whole cluster.
    """

    @property
    def cluster(self) -> ControlRequests: ...

    def run_batch(self, batch: RunBatch) -> None:
        """Hand a batch to a worker."""
        ...

    def wake_at(self, at_s: float) -> None:
        """Have the frontend pass on a ``Tick`` at a time of the clock, seconds."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Return the answer to ``GET /modelless/status``."""
        ...

    def check_health(self) -> None:
        """Raise RuntimeError if the process cannot serve any more."""
        ...

    def variant_rows(self) -> Sequence[VariantRow]:
        """Return what the console shows of each variant."""
        ...
