"""The parts of replies beside the outputs: how a query was served, or why it was refused."""

from __future__ import annotations

from typing import Any

from modelless.common.errors import (
    DeadlineExceededError,
    InfeasibleError,
    ModellessError,
    OverloadedError,
    UnavailableError,
)
from modelless.controller.dispatch.messages import Refuse
from modelless.controller.dispatch.receipts import Receipt
from modelless.controller.dispatch.refusal_messages import is_infeasible
from modelless.policies.reasons import Reason
from modelless.variants.vocabulary import Accuracy

_TRY_AGAIN_ELSEWHERE = {Reason.NOTHING_READY, Reason.SHUTTING_DOWN, Reason.WORKER_LOST}


def reply_parameters(receipt: Receipt, accuracy: Accuracy, receipt_id: str) -> dict[str, Any]:
    """Return the parameters of the answer to a served query.

    Args:
        receipt: the query's receipt.
        accuracy: the accuracy of the variant that served it.
        receipt_id: the receipt's id for clients.
    """
    parameters: dict[str, Any] = {"variant": receipt.variant_id}
    if receipt.is_cached:
        parameters["cached"] = True
    else:
        parameters["device"] = receipt.device_class
        parameters["predicted_latency_ms"] = _ms(receipt.predicted_latency_s)
    parameters["observed_latency_ms"] = _ms(receipt.observed_latency_s or 0.0)
    parameters["accuracy"] = accuracy.percent
    parameters["accuracy_provenance"] = accuracy.provenance.value
    parameters["receipt_id"] = receipt_id
    if (cost_usd := receipt.cost_usd) is not None:
        parameters["cost_usd"] = cost_usd
    if (predicted_usd := receipt.predicted_cost_usd) is not None:
        parameters["predicted_cost_usd"] = predicted_usd
    return parameters


def error_of(refusal: Refuse) -> ModellessError:
    """Return the error that a client gets for a refusal."""
    if is_infeasible(refusal.reason):
        return InfeasibleError(refusal.message)
    if refusal.reason in (Reason.QUEUE_TOO_LONG, Reason.QUEUE_FULL):
        return OverloadedError(refusal.message, refusal.retry_after_s or 1.0)
    if refusal.reason is Reason.DEADLINE_PASSED:
        return DeadlineExceededError(refusal.message, refusal.retry_after_s)
    if refusal.reason in _TRY_AGAIN_ELSEWHERE:
        return UnavailableError(refusal.message, refusal.retry_after_s or 1.0)
    return ModellessError(refusal.message)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
