"""How a query leaves without an answer: taken out of where it waits, and refused with a reason."""

from __future__ import annotations

from collections.abc import Iterable

from modelless.controller.dispatch.messages import DispatchEffect, Refuse
from modelless.controller.dispatch.open_queries import Books
from modelless.controller.dispatch.pending_loads import HoldingRoom
from modelless.controller.dispatch.policy_calls import PolicyFailure
from modelless.controller.dispatch.queues import WaitingRoom
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.dispatch.tenants import Tenants
from modelless.controller.dispatch.workers import Crew
from modelless.policies.reasons import Reason


class Refusals:
    """The way out of one dispatcher.

    Args:
        books: where each query is closed.
        tenants: whose queries they are; say when to try again.
        waiting, held: where queries wait.
        crew: is told of what is taken out of its queues.
    """

    def __init__(
        self, books: Books, tenants: Tenants, waiting: WaitingRoom, held: HoldingRoom, crew: Crew
    ) -> None:
        self._books = books
        self._tenants = tenants
        self._waiting = waiting
        self._held = held
        self._crew = crew

    def take_out(self, query_id: int) -> None:
        """Take the query out of where it waits, if it does."""
        self._held.forget(query_id)
        if self._waiting.place(query_id) is not None:
            worker = self._waiting.take(query_id).worker
            if worker is not None:
                self._crew.publish(worker)

    def refuse(self, receipt: Receipt, reason: Reason, now_s: float) -> Refuse:
        """Refuse an open query."""
        self._tenants.on_refused(reason)
        self.take_out(receipt.query.query_id)
        refusal = self._books.refuse(receipt, reason, now_s)
        if reason is Reason.QUEUE_FULL or reason is Reason.DEADLINE_PASSED:
            wait_s = self._tenants.drain_s(now_s)
            return refusal._replace(retry_after_s=wait_s or refusal.retry_after_s)
        return refusal

    def refuse_all(
        self, receipts: Iterable[Receipt], reason: Reason, now_s: float
    ) -> list[DispatchEffect]:
        """Refuse these open queries."""
        return [self.refuse(receipt, reason, now_s) for receipt in receipts]

    def refuse_failed(self, failure: PolicyFailure, now_s: float) -> list[DispatchEffect]:
        """Refuse what a policy failed with."""
        effects: list[DispatchEffect] = []
        for query_id in failure.query_ids:
            receipt = self._books.open[query_id]
            receipt.problem = failure.problem
            effects.append(self.refuse(receipt, Reason.POLICY_FAILED, now_s))
        return effects
