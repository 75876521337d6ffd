"""The control loop's answer to a member's report (``control.messages.MemberReport``).

Processes of two releases may meet: see ``release.PROTOCOL`` before changing anything here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modelless.controller.api.feedback import Feedback
from modelless.controller.api.tenant_limits import TenantUse
from modelless.controller.device.messages import Order
from modelless.controller.dispatch.messages import WorkerReport
from modelless.variants.vocabulary import Placement


@dataclass(frozen=True, slots=True)
class Orders:
    """The control loop's answer.

    Attributes:
        effects: what this member is to do, in order.
        directory: pool workers that gateways may send batches to.
        shares: the plan's, for gateways' selection policies; see ``Targets``.
        status: the cluster in a few figures, for anyone who asks a gateway.
        busy_neighbours: mean number of the other devices of its host that were busy lately.
        feedback: on this gateway's answers, which came in at other gateways.
        starting_s: how soon a worker can be there, by device class, where scaling starts workers.
        is_at_rest: scaling keeps no worker of any pool just now.
        is_settled: whether every member had time to report. Until then a worker that is not in the
            directory is not gone.
        predecessor_id: the member that it succeeds, while it starts; empty if there is none.
        lacking: what the predecessor serves and this member does not yet.
        tenants: what tenants use at other gateways, and what they have spent today at all.
    """

    effects: tuple[Order, ...]
    directory: tuple[WorkerReport, ...]
    shares: Mapping[str, Mapping[Placement, float]]
    status: Mapping[str, Any]
    busy_neighbours: float = 0.0
    feedback: tuple[Feedback, ...] = ()
    starting_s: Mapping[str, float] = field(default_factory=dict)
    is_at_rest: bool = False
    is_settled: bool = True
    predecessor_id: str = ""
    lacking: tuple[str, ...] = ()
    tenants: Mapping[str, TenantUse] = field(default_factory=dict)
