"""Which loads pay: local search over what the workers hold, from what they hold now.

A move loads a placement into one worker and takes out what it displaces there. It earns the new
instance's worth from when it will be ready (loads of a worker run one at a time) to the horizon,
and costs what is displaced from now to the horizon: a load that takes long must be worth far more
than what leaves, and noise moves nothing. The best move by worth per byte is made first; each is
checked against the exact difference, and one stops at any time with a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modelless.policies.scaling.demand_value.offer import Offer
from modelless.policies.scaling.demand_value.shelves import Held, Shelf
from modelless.policies.scaling.demand_value.worth import (
    Served,
    Worth,
    gains_of_one_more,
    losses_of_one_less,
    serve,
)
from modelless.policies.views import FloatArray

_FREE_ROOM = 0.01  # of the horizon: what a load into free room is worth however long it waits
_MOST_LOOKS = 60  # candidates looked at for one move
_MOST_MOVES = 500  # in one plan
_MOST_CELLS = 3e7  # of the tables gone through for one plan


@dataclass(frozen=True, slots=True)
class Move:
    """Load placement ``row`` into a shelf, in place of the instances of ``victims``.

    Attributes:
        earned: worth up to the horizon, less all it costs.
        loading_cost: worth that loading costs, less that of the queries it rescues.
    """

    row: int
    shelf: Shelf
    victims: tuple[Held, ...]
    earned: float
    loading_cost: float


class Search:
    """Finds moves for one view.

    Args:
        offer, worth: what could be loaded, and what for.
        shelves: changed as moves are made.
        waiting: (k,), queries that wait for a load now.
        horizon_s: how long ahead gains and losses are added up.
        utilisation: the share of a worker's time one instance may use.
        spread: the share of a placement's worth that is at risk while one worker alone holds it.
        loading: the share of a worker's mean worth that is lost while it loads.
    """

    def __init__(
        self,
        offer: Offer,
        worth: Worth,
        shelves: Sequence[Shelf],
        waiting: FloatArray,
        horizon_s: float,
        utilisation: float,
        spread: float,
        loading: float,
    ) -> None:
        self._offer, self._worth, self._shelves = offer, worth, shelves
        self._horizon_s, self._utilisation, self._spread = horizon_s, utilisation, spread
        self._loading = loading
        self._barred: set[int] = set()
        self.recount()
        self._waiting = np.where(
            (worth.gain[:, self.count > 0] > 0.0).any(axis=1), 0.0, waiting
        )  # what is loading already need not be loaded again

    def recount(self) -> None:
        """Take in what the shelves hold now."""
        self.count = np.zeros(len(self._offer.placements), dtype=np.intp)
        for shelf in self._shelves:
            for held in shelf.held:
                if held.row >= 0:
                    self.count[held.row] += 1

    def run(self, *, free_room_only: bool = False) -> None:
        """Make moves until none pays, or enough was tried.

        Args:
            free_room_only: displace nothing.
        """
        cells = max(self._worth.gain.size * 12, 1)
        tries = int(min(_MOST_MOVES, max(_MOST_CELLS // cells, 4)))
        served = self.serve()
        for _ in range(tries):
            move = self._best(served, free_room_only)
            if move is None:
                break
            before = self.count.copy()
            self._count(move)
            after = self.serve()
            exact = (after.value_per_s - served.value_per_s) * self._horizon_s
            if move.victims and exact <= move.loading_cost:
                self.count = before
                self._barred.add(move.row)
                continue
            self._make(move)
            served = after

    def serve(self) -> Served:
        """Who serves what as the shelves are."""
        return serve(self._worth, self.count, self._utilisation)

    def losses(self, served: Served) -> FloatArray:
        """(p,), worth a second of one instance of each placement to those it alone can serve."""
        lost = losses_of_one_less(self._worth, served, self.count, self._utilisation)
        others = np.maximum(self.count * (self.count - 1), 1)
        return lost + np.where(self.count > 1, self._at_risk(served) / others, 0.0)

    def _at_risk(self, served: Served) -> FloatArray:
        rows = served.by.ravel()
        worth = (served.amount_per_s * served.gain)[:, :-1].ravel()
        total = np.bincount(rows[rows >= 0], worth[rows >= 0], minlength=len(self.count))
        return np.asarray(total * self._spread, dtype=np.float64)

    def _best(self, served: Served, free_room_only: bool) -> Move | None:
        offer, horizon_s = self._offer, self._horizon_s
        gains = gains_of_one_more(self._worth, served, self._utilisation)
        risk = self._at_risk(served) / np.maximum(self.count * (self.count + 1), 1)
        gains = gains + np.where(self.count > 0, risk, 0.0)
        losses = self.losses(served)
        loading_cost_per_s = self._loading * served.value_per_s / max(len(self._shelves), 1)
        soon_s = np.maximum(horizon_s - offer.load_s, _FREE_ROOM * horizon_s)
        bound = gains * soon_s + self._rescued()
        bound_per_byte = bound / np.maximum(offer.memory_bytes, 1.0)
        order = np.lexsort((np.arange(len(bound)), -bound_per_byte))
        queues = [[] if free_room_only else self._leaving(shelf, losses) for shelf in self._shelves]
        most_free = max((shelf.free_bytes for shelf in self._shelves), default=0.0)
        if free_room_only:
            order = order[offer.memory_bytes[order] <= most_free]
        best: Move | None = None
        best_per_byte = 0.0
        looks = 0
        for row in order.tolist():
            if bound_per_byte[row] <= best_per_byte or looks >= _MOST_LOOKS:
                break
            if row in self._barred:
                continue
            looks += 1
            for shelf, queue in zip(self._shelves, queues, strict=True):
                move = self._into(row, shelf, queue, float(gains[row]), loading_cost_per_s)
                if move is not None:
                    per_byte = move.earned / max(float(offer.memory_bytes[row]), 1.0)
                    if per_byte > best_per_byte * (1.0 + 1e-12):
                        best, best_per_byte = move, per_byte
                    elif (
                        best is not None
                        and (best.row, best_per_byte) == (row, per_byte)
                        and shelf.free_bytes > best.shelf.free_bytes
                        and not move.victims
                    ):
                        best = move
        return best

    def _rescued(self) -> FloatArray:
        """(p,), worth of the queries that wait now and would be served if the load began now."""
        if not self._waiting.any():
            return np.zeros(len(self.count))
        in_time = self._worth.patience_s >= 0.0
        rescued = np.where(in_time, self._worth.gain * self._waiting[:, None], 0.0)
        return np.asarray(rescued.sum(axis=0), dtype=np.float64)

    def _leaving(self, shelf: Shelf, losses: FloatArray) -> list[tuple[float, float, Held]]:
        """Loss a second and size of the shelf's movable instances, least loss a byte first."""
        leaving = [
            (float(losses[held.row]) if held.row >= 0 else 0.0, held.size_bytes, held)
            for held in shelf.held
            if held.movable
        ]
        leaving.sort(key=lambda one: (one[0] / max(one[1], 1.0), one[2].row))
        return leaving

    def _into(
        self,
        row: int,
        shelf: Shelf,
        leaving: Sequence[tuple[float, float, Held]],
        gain: float,
        loading_cost_per_s: float,
    ) -> Move | None:
        """The move of a placement into a shelf; None if it is no move, or does not pay."""
        offer = self._offer
        if offer.class_of[row] != shelf.class_number or any(h.row == row for h in shelf.held):
            return None
        missing = float(offer.memory_bytes[row]) - shelf.free_bytes
        victims: list[tuple[float, float, Held]] = []
        for one in leaving:
            if missing <= 0.0:
                break
            victims.append(one)
            missing -= one[1]
        if missing > 0.0:
            return None
        for one in sorted(victims, key=lambda one: -one[0]):  # smaller ones may do without it
            if missing + one[1] <= 0.0:
                victims.remove(one)
                missing += one[1]
        load_s = float(offer.load_s[row])
        unready_s = min(shelf.loaded_at_s + load_s, self._horizon_s)
        if victims:
            loading_cost = gain * unready_s + loading_cost_per_s * load_s
        else:  # nothing is lost meanwhile, so that it pays however late it is ready
            loading_cost = gain * min(unready_s, (1.0 - _FREE_ROOM) * self._horizon_s)
        if self._waiting.any():
            in_time = self._worth.patience_s[:, row] >= shelf.loaded_at_s
            loading_cost -= float((self._worth.gain[:, row] * self._waiting)[in_time].sum())
        earned = self._horizon_s * (gain - sum(one[0] for one in victims)) - loading_cost
        if earned <= 0.0:
            return None
        return Move(row, shelf, tuple(one[2] for one in victims), earned, loading_cost)

    def _count(self, move: Move) -> None:
        self.count[move.row] += 1
        for held in move.victims:
            if held.row >= 0:
                self.count[held.row] -= 1

    def _make(self, move: Move) -> None:
        shelf, size = move.shelf, float(self._offer.memory_bytes[move.row])
        for held in move.victims:
            shelf.held.remove(held)
            shelf.free_bytes += held.size_bytes
        shelf.held.append(Held(move.row, size, movable=False))
        shelf.free_bytes -= size
        shelf.loaded_at_s += float(self._offer.load_s[move.row])
        self._waiting[self._worth.gain[:, move.row] > 0.0] = 0.0
