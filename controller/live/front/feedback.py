"""Feedback on a gateway's own answers, and on other gateways' answers, which is passed on."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from numpy.typing import NDArray

from modelless.common.errors import InvalidInputError, ModellessError, NotFoundError
from modelless.controller.api.feedback import Feedback, judge
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.dispatch.trials import Answer, TrialArms
from modelless.controller.live.orders import Orders
from modelless.variants.metrics.outputs import ClassOutput
from modelless.variants.vocabulary import Task

logger = logging.getLogger(__name__)

ELSEWHERE_KEPT: Final = 10_000
"""Entries for other gateways that wait for the next report; the oldest are dropped first."""
GRACE_ORDERS: Final = 60
"""A gateway that no orders mention still counts for so many orders, about a minute: it may only
have been silent."""
_MOST_NAMED: Final = 8


class ReceiptTags:
    """Makes and checks the ends of receipts' ids, which nobody can guess and only the owner fits.

    Args:
        secret: of the gateway; new ones are made for each process.
    """

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret or secrets.token_bytes(32)

    def tag(self, query_id: int, owner: str) -> str:
        """Return the tag, 24 hexadecimal digits.

        Args:
            query_id: of the receipt.
            owner: the tenant whose key the query bore; empty where there are no keys.
        """
        text = f"{query_id}/{owner}".encode()
        return hashlib.blake2b(text, digest_size=12, key=self._secret).hexdigest()

    def fits(self, query_id: int, owner: str, tag: str) -> bool:
        """Whether it is the tag of this owner's receipt."""
        return hmac.compare_digest(self.tag(query_id, owner), tag)


class FeedbackDesk:
    """A gateway's feedback, and its answers that feedback may come for.

    Args:
        gateway_id: begins the receipt ids of this gateway's answers.
        arms: counts answers, and what feedback says of them.
        tasks: all tasks, by name.
        tags: of the gateway's receipts.
    """

    def __init__(
        self,
        gateway_id: str,
        arms: TrialArms,
        tasks: Mapping[str, Task],
        tags: ReceiptTags | None = None,
    ) -> None:
        self.arms = arms
        self.tags = tags or ReceiptTags()
        self._gateway_id = gateway_id
        self._tasks = tasks
        self._outputs: dict[str, ClassOutput | None] = {}
        self._indices: dict[str, dict[str, int]] = {}
        self._elsewhere: deque[Feedback] = deque(maxlen=ELSEWHERE_KEPT)
        self._gateways: dict[str, int] = {}  # by id, the number of the last orders that mention it
        self._orders = 0
        self._knows_all = False  # whether the control loop knows all gateways

    def count_answer(
        self, receipt: Receipt, outputs: Mapping[str, NDArray[Any]], task: Task
    ) -> None:
        """Count a query of the task that was answered with these outputs."""
        self.arms.count_answer(receipt, partial(self.classes, outputs, task))

    def accept_feedback(self, feedback: Sequence[Feedback], owner: str = "") -> dict[str, int]:
        """Count a client's feedback; return how many entries counted, or not.

        Args:
            feedback: the entries.
            owner: the tenant of the client's key; empty where there are no keys.

        Raises:
            InvalidInputError: an entry does not fit its answer; those before it have counted.
            NotFoundError: some entries are on answers of unknown gateways, or on answers that this
                tenant never got; none counts.
        """
        self._check_gateways(feedback)
        self._check_tags(feedback, owner)
        became = {"counted": 0, "passed_on": 0, "ignored": 0}
        for entry in feedback:
            told = entry._replace(owner=owner)
            if told.gateway_id != self._gateway_id:
                self._elsewhere.append(told)
                became["passed_on"] += 1
            else:
                became["counted" if self._count(told) else "ignored"] += 1
        return became

    def obey(self, orders: Orders) -> None:
        """Note the known gateways, and count feedback on own answers that others received."""
        members = orders.status.get("members", ())
        self._orders += 1
        self._gateways |= {
            each["id"]: self._orders for each in members if each["role"] == "gateway"
        }
        if orders.is_settled:
            self._knows_all = True
            oldest = self._orders - GRACE_ORDERS
            self._gateways = {id_: last for id_, last in self._gateways.items() if last >= oldest}
        for told in orders.feedback:
            if not self._is_owner(told, told.owner):
                continue
            try:
                self._count(told)
            except ModellessError as error:  # the client has its answer already
                logger.warning("feedback on %s-%d: %s", told.gateway_id, told.query_id, error)

    def for_others(self) -> tuple[Feedback, ...]:
        """Return the feedback to pass on since the last call."""
        taken = tuple(self._elsewhere)
        self._elsewhere.clear()
        return taken

    def _check_gateways(self, feedback: Sequence[Feedback]) -> None:
        if not self._knows_all:
            return
        known = {*self._gateways, self._gateway_id}
        unknown = [
            f"feedback.{number}.receipt_id: '{told.gateway_id}-{told.query_id}'"
            for number, told in enumerate(feedback)
            if told.gateway_id not in known
        ]
        if unknown:
            more = f" and {len(unknown) - _MOST_NAMED} more" * (len(unknown) > _MOST_NAMED)
            raise NotFoundError(
                f"{', '.join(unknown[:_MOST_NAMED])}{more}: got a receipt of a gateway that is not "
                "known here, or no more; its answers are forgotten. Leave "
                f"{'it' if len(unknown) == 1 else 'these'} out; none of the others has counted yet."
            )

    def _check_tags(self, feedback: Sequence[Feedback], owner: str) -> None:
        for number, told in enumerate(feedback):
            if told.gateway_id == self._gateway_id and not self._is_owner(told, owner):
                raise NotFoundError(
                    f"feedback.{number}.receipt_id: got no receipt of yours; allowed: a reply's "
                    "parameters.receipt_id, whole. Leave the entry out; none has counted yet."
                )

    def _is_owner(self, told: Feedback, owner: str) -> bool:
        return self.tags.fits(told.query_id, owner, told.tag)

    def _count(self, told: Feedback) -> bool:
        def of_answer(answer: Answer) -> tuple[float, ...]:
            task = self._tasks[answer.task]
            if task.name not in self._indices:
                self._indices[task.name] = {name: i for i, name in enumerate(task.labels)}
            return judge(answer, told, task, self._indices[task.name])

        return self.arms.count_feedback(told.query_id, of_answer, told.owner)

    def classes(self, outputs: Mapping[str, NDArray[Any]], task: Task) -> tuple[int, ...] | None:
        """Return the class that each item's outputs put first; None if the task has none."""
        if task.name not in self._outputs:
            try:
                self._outputs[task.name] = ClassOutput(task, task.accuracy_metric)
            except InvalidInputError:
                self._outputs[task.name] = None
        output = self._outputs[task.name]
        return None if output is None else tuple(output.first(outputs).tolist())
