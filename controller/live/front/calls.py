"""The interfaces between a gateway's servers, its frontend and the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from modelless.controller.api.grpc_calls import Call
from modelless.controller.api.v2_limits import Limits
from modelless.controller.api.v2_reply import Headers, Reply
from modelless.controller.live.front.bodies import BodyBudget

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


class ClusterRequests(Protocol):
    """Answers requests that are of the whole cluster, now or later."""

    def scrape(self, respond: Respond) -> None:
        """Answer with the metrics."""
        ...

    def pin(self, scope: str, is_pinned: bool, by: str, respond: Respond) -> None:
        """Pin a scope, or unpin it, for somebody."""
        ...

    def batch(self, respond: Respond, act: str, *arguments: object) -> None:
        """Begin an offline run, tell its state or cancel it; see ``BatchJobs``."""
        ...
