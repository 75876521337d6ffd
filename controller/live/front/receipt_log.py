"""Writes a sample of a gateway's receipts to files, off the path of queries."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from modelless.controller.config import HistorySettings
from modelless.controller.dispatch.receipts import Receipt, RecentReceipts
from modelless.controller.history.receipts import (
    ReceiptFiles,
    drop_old_files,
    receipt_document,
    receipts_folder,
)

_FAR_OFF = 2.0


class Kind(IntEnum):
    """How likely people are to ask about a query."""

    TROUBLED = 0
    """Not answered in time, tried more than once, told of a problem, or explored."""

    BADLY_PREDICTED = 1
    """Answered in time, in more than twice the predicted time."""

    AS_PREDICTED = 2


def kind_of(receipt: Receipt) -> Kind:
    """The kind of a closed receipt."""
    if receipt.outcome != "served" or receipt.attempts > 1 or receipt.rebinds or receipt.problem:
        return Kind.TROUBLED
    if receipt.first_choice is not None and receipt.first_choice.explored:
        return Kind.TROUBLED
    observed_s = receipt.observed_latency_s or 0.0
    is_far_off = observed_s > _FAR_OFF * receipt.predicted_latency_s
    return Kind.BADLY_PREDICTED if is_far_off else Kind.AS_PREDICTED


def sample(receipts: Sequence[Receipt], most: int) -> list[Receipt]:
    """Return at most ``most`` of the receipts, in their order.

    Each kind gets an equal part, evenly spread, and what a rarer kind leaves goes to the others. So
    a flood of one kind leaves room for the others.
    """
    by_kind: list[list[int]] = [[] for _ in Kind]
    for number, receipt in enumerate(receipts):
        by_kind[kind_of(receipt)].append(number)
    chosen: list[int] = []
    for kinds_left, numbers in zip(range(len(Kind), 0, -1), sorted(by_kind, key=len), strict=True):
        part = math.ceil((most - len(chosen)) / kinds_left)
        chosen += _spread(numbers, min(part, len(numbers)))
    return [receipts[number] for number in sorted(chosen)]


def weigh(receipts: Sequence[Receipt], chosen: Sequence[Receipt]) -> list[float]:
    """Return how many of the receipts each chosen one stands for; see ``sample``."""
    whole, kept = (Counter(map(kind_of, each)) for each in (receipts, chosen))
    return [whole[kind_of(each)] / kept[kind_of(each)] for each in chosen]


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """Return ``count`` of the numbers, evenly spread."""
    return [numbers[place * len(numbers) // count] for place in range(count)]


logger = logging.getLogger(__name__)

LAST_KEPT = 500
"""Number of receipts that are written when a gateway ends, besides the sample."""

_MOST_SEEN = 20_000


class ReceiptLog:
    """Writes a sample of the receipts that were closed since the last call, in a thread.

    Args:
        home: folder of the files.
        gateway_id: the gateway of the receipts.
        settings: receipts a second, and bytes in all.
    """

    def __init__(self, home: Path, gateway_id: str, settings: HistorySettings) -> None:
        self._folder = receipts_folder(home)
        self._gateway_id = gateway_id
        self._per_s = settings.receipts_per_s
        self._files = ReceiptFiles(self._folder, gateway_id, settings.receipts_max_bytes)
        self._is_tidy = False
        self._last: Receipt | None = None
        self._taken_s = time.monotonic()
        self._may = 0.0
        self._unwritten: list[Receipt] = []
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False

    def log_new(self, receipts: RecentReceipts) -> None:
        """Begin to write new receipts, unless it still writes. Call this about once a second."""
        if not self._per_s or (self._writing is not None and not self._writing.done()):
            return
        now_s = time.monotonic()
        self._may = min(self._may + self._per_s * (now_s - self._taken_s), 10.0 * self._per_s)
        self._taken_s = now_s
        fresh = receipts.newest(self._last, _MOST_SEEN)
        if not fresh:
            return
        chosen = sample(fresh, int(self._may))
        self._may -= len(chosen)
        self._last = fresh[-1]
        told = {id(receipt) for receipt in chosen}
        rest = [receipt for receipt in fresh if id(receipt) not in told]
        self._unwritten = (self._unwritten + rest)[-LAST_KEPT:]
        writing = asyncio.to_thread(self._write, chosen, weigh(fresh, chosen))
        self._writing = asyncio.get_running_loop().create_task(writing)

    def close(self, receipts: RecentReceipts) -> None:
        """Write the last receipts, also those that were not in the sample."""
        if not self._per_s:
            return
        fresh = receipts.newest(self._last, LAST_KEPT)
        weights = [0.0] * len(self._unwritten) + [1.0] * len(fresh)  # others stand for the former
        self._write((self._unwritten + fresh)[-LAST_KEPT:], weights[-LAST_KEPT:])
        self._unwritten = []

    def _write(self, receipts: Sequence[Receipt], weights: Sequence[float]) -> None:
        now_s = time.monotonic()
        documents = (
            {**receipt_document(self._gateway_id, each, now_s), "weight": weight}
            for each, weight in zip(receipts, weights, strict=True)
        )
        try:
            if not self._is_tidy:
                drop_old_files(self._folder, time.time())
                self._is_tidy = True
            self._files.write(documents)
        except OSError as error:
            if not self._is_failing:
                logger.warning("receipts are not kept: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False
