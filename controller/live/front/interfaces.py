"""The interfaces between a gateway's servers, its frontend and the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from modelless.controller.api.grpc_calls import Call
from modelless.controller.api.request_limits import Limits
from modelless.controller.api.v2_reply import Headers, Reply
from modelless.controller.live.front.bodies import BodyBudget
from modelless.controller.live.front.console.pages import VariantRow

Tensors = Mapping[str, NDArray[Any]]
Respond = Callable[[Reply], None]


class Frontend(Protocol):
    """Answers requests.

    Attributes:
        limits: bounds on requests.
        budget: of the memory for bodies.
        replies: how many replies had each HTTP status; the server counts them here.
    """

    limits: Limits
    budget: BodyBudget
    replies: Counter[int]

    def on_request(
        self,
        method: str,
        path: bytes,
        headers: Headers,
        body: memoryview,
        arrival_s: float,
        respond: Respond,
    ) -> int | None:
        """Answer by calling ``respond`` once, now or later; if later, return a number for it."""
        ...

    def on_call(self, call: Call, respond: Respond) -> int | None:
        """Answer a gRPC call as ``on_request`` does; the body of a reply of 200 is a message."""
        ...

    def on_abandoned(self, number: int) -> None:
        """Cancel an unanswered request, because its client went away."""
        ...


class RunBatch(NamedTuple):
    """A batch for a worker, with its tensors."""

    batch_id: int
    worker_id: str
    variant_id: str
    inputs: Sequence[Tensors]


class ClusterRequests(Protocol):
    """Answers requests that are of the whole cluster, now or later."""

    def scrape(self, accept: str, respond: Respond) -> None:
        """Answer with the metrics, in the form that the header ``Accept`` asks for."""
        ...

    def pin(self, scope: str, is_pinned: bool, by: str, respond: Respond) -> None:
        """Pin a scope, or unpin it, for somebody."""
        ...

    def batch(self, respond: Respond, act: str, *arguments: object) -> None:
        """Begin an offline run, tell its state or cancel it; see ``BatchJobs``."""
        ...


class Host(Protocol):
    """The process around a frontend.

    Attributes:
        cluster: answers what is of the whole cluster.
    """

    @property
    def cluster(self) -> ClusterRequests: ...

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
