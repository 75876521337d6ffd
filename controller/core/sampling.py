"""Which receipts are worth writing down, when there are too many to write them all."""

from __future__ import annotations

from collections.abc import Sequence

from modelless.controller.core.receipts import Receipt

_TELLING_SHARE = 0.75
_FAR_OFF = 2.0


def is_telling(receipt: Receipt) -> bool:
    """Whether someone may ask about it: refused, late, moved, or far from what was predicted."""
    if receipt.outcome != "served" or receipt.attempts > 1 or receipt.rebinds or receipt.problem:
        return True
    observed_s = receipt.observed_latency_s or 0.0
    predicted_s = receipt.predicted_latency_s
    return observed_s > _FAR_OFF * predicted_s


def sample(receipts: Sequence[Receipt], most: int) -> list[Receipt]:
    """At most ``most`` of the receipts, in their order.

    Of telling ones up to three quarters, evenly spread, and of the others the rest: so a flood of
    refusals leaves room for what was served, and the other way round.
    """
    if len(receipts) <= most:
        return list(receipts)
    telling = [number for number, receipt in enumerate(receipts) if is_telling(receipt)]
    told = set(telling)
    others = [number for number in range(len(receipts)) if number not in told]
    for_telling = min(len(telling), max(round(most * _TELLING_SHARE), most - len(others)))
    chosen = _spread(telling, for_telling) + _spread(others, most - for_telling)
    return [receipts[number] for number in sorted(chosen)]


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """``count`` of the numbers, evenly spread."""
    if count <= 0:
        return []
    step = len(numbers) / count
    return [numbers[int(place * step)] for place in range(min(count, len(numbers)))]
