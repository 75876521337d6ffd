"""The search for what workers should hold: moves that gain more than they cost, with confidence.

A query is served by the best placement among the workers that can begin it in time. If worker w
offers it a gain of g_w and is blocked with probability b_w, independently of the others, its
expected gain is that of the best free offer,

    E[max] = integral over x > 0 of 1 - product over all w with g_w > x of b_w,

so a second copy is worth what the first cannot serve, and a better variant what it is better by. A
load gains its share of that from its end on, and what it displaces loses its own from now on. The
demand is known for a time of about the horizon H, so a second that is t away counts exp(-t / H).
Rates are known from counts, so gain and loss have a variance: variants are displaced only if the
gain exceeds the loss by a number of standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelless.policies.scaling.expected_value.offer import IntArray, Offer
from modelless.policies.scaling.expected_value.worth import TaskWorth
from modelless.policies.views import FloatArray

_NO_TASK = -2  # -1 is that of placements which serve no query
_MOST_REJECTED = 64  # moves that look well and turn out not to be, in one search
_MOST_MOVES = 4096  # of one search, shared by the workers, but at least 4 for each of them
AHEAD_S = 5.0
"""A worker that planned loads keep so long is planned no more: until then other queries have come,
and the next plan knows them."""
_NEARLY = 0.8  # of the best load's points a byte
_AWAY_LOADS = 10.0
"""A variant that is displaced for queries that wait is taken to be away for so many load times, as
other loads come before its own."""
_WORKERS_A_LOAD = 32  # one of so many takes a load of a task before the next load's worth is found


@dataclass(slots=True)
class Holdings:
    """What each worker holds, and may hold; changed by the search.

    Attributes:
        held: shape (p, w).
        movable: what may be displaced, shape (p, w).
        allowed: what may be loaded, shape (p, w).
        free_bytes: shape (w,).
        bytes: of each held instance, shape (p, w).
        busy_s: seconds that planned loads take, one after the other, shape (w,).
    """

    held: NDArray[np.bool_]
    movable: NDArray[np.bool_]
    allowed: NDArray[np.bool_]
    free_bytes: FloatArray
    bytes: FloatArray
    busy_s: FloatArray

    def place(self, offer: Offer, row: int, worker: int) -> None:
        """Have a worker load a placement, after the loads that it has."""
        self.held[row, worker], self.allowed[row, worker] = True, False
        self.bytes[row, worker] = offer.memory_bytes[row]
        self.free_bytes[worker] -= offer.memory_bytes[row]
        self.busy_s[worker] += offer.load_s[row]


class Search:
    """Improves holdings move by move.

    Args:
        offer: the placements.
        tasks: what they are worth.
        holdings: what is there.
        horizon_s: time constant with which later gains and losses count less, seconds.
        confidence_z: standard deviations by which a gain must exceed a loss.
    """

    def __init__(
        self,
        offer: Offer,
        tasks: Sequence[TaskWorth],
        holdings: Holdings,
        horizon_s: float,
        confidence_z: float,
    ) -> None:
        self._offer, self._tasks, self._now = offer, tasks, holdings
        self._horizon_s, self._confidence_z = horizon_s, confidence_z
        self._task_of = np.full(len(offer.placements), -1, dtype=np.intp)
        self._at = np.zeros(len(offer.placements), dtype=np.intp)  # its place among the task's rows
        for number, task in enumerate(tasks):
            self._task_of[task.rows] = number
            self._at[task.rows] = np.arange(len(task.rows))
        self._states = [_TaskState(task, holdings.held) for task in tasks]
        shape = holdings.held.shape
        self._gain, self._loss = np.zeros(shape), np.zeros(shape)  # points a second
        for number in range(len(tasks)):
            self._update(number)
        self._most_moves = max(_MOST_MOVES // max(shape[1], 1), 4)
        self.added: list[int] = []

    def run(self) -> None:
        """Fill free room, then displace what is worth less."""
        self._fill()
        self._displace()

    def load_now(self, rows: Sequence[int], queries: float) -> None:
        """Load one of these placements for queries that wait, if it gains more from them than what
        is displaced loses. It comes before all other loads.

        Args:
            rows: of the placements, which serve the same queries.
            queries: number.
        """
        gain = {
            row: float(self._tasks[self._task_of[row]].gain[:, self._at[row]].max())
            for row in rows
            if self._task_of[row] >= 0
        }
        for row in sorted(gain, key=lambda row: -gain[row]):
            cheapest = self._cheapest_room(row)
            if cheapest is not None:
                loss, worker, gone = cheapest
                if queries * gain[row] > loss * _AWAY_LOADS * self._offer.load_s[row]:
                    self._move(row, worker, gone)
                    self.added.insert(0, self.added.pop())
                    return

    def _cheapest_room(self, row: int) -> tuple[float, int, list[int]] | None:
        """Returns the least loss that makes room for a load, points a second, its worker, and what
        is displaced there; None if there is no room."""
        best: tuple[float, int, list[int]] | None = None
        for worker in np.flatnonzero(self._now.allowed[row]).tolist():
            gone = self._take(self._cheapest_first(worker), row, worker)
            if gone is not None:
                loss = float(self._loss[gone, worker].sum())
                if best is None or loss < best[0]:
                    best = loss, worker, gone
        return best

    def _tasks_of(self, *rows: int) -> set[int]:
        return {int(self._task_of[row]) for row in rows} - {-1}

    def _update(self, number: int) -> None:
        rows = self._tasks[number].rows
        self._gain[rows], self._loss[rows] = self._states[number].changes(self._now.held[rows])

    def _left_s(
        self, row: int | slice = slice(None), worker: int | slice = slice(None)
    ) -> FloatArray:
        """Returns how long loads would gain, later seconds for less; by default of all, (p, w)."""
        wait_s = np.add.outer(self._offer.load_s[row], self._now.busy_s[worker])
        left_s: FloatArray = self._horizon_s * np.exp(-wait_s / self._horizon_s)
        return left_s

    def _fill(self) -> None:
        """Load the most points a byte, over and over; in the order of the points a byte.

        Tasks do not change each other's worth, so those that are worth nearly as much load in one
        round, on workers of their own.
        """
        size = np.maximum(self._offer.memory_bytes, 1.0)[:, None]
        loads = np.zeros(len(self._now.busy_s), dtype=np.intp)
        added: list[tuple[float, int]] = []
        while True:
            fits = self._now.allowed & (size <= self._now.free_bytes)
            fits &= (loads < self._most_moves) & (self._now.busy_s < AHEAD_S)
            best = sorted(self._best_loads(np.where(fits, self._gain * self._left_s(), 0.0) / size))
            used: set[int] = set()
            tasks: set[int] = set()
            for density, row, worker in reversed(best):
                if worker not in used and density >= _NEARLY * best[-1][0]:
                    used.add(worker)
                    tasks.add(int(self._task_of[row]))
                    self._place(row, worker, [])
                    added.append((-density, row))
            if not used:
                self.added = [row for _, row in sorted(added)]
                return
            loads[list(used)] += 1
            for number in tasks:
                self._update(number)

    def _best_loads(self, density: FloatArray) -> Iterator[tuple[float, int, int]]:
        """Yield (density, row, worker) of the best loads of each task, on different workers."""
        most = max(density.shape[1] // _WORKERS_A_LOAD, 1)
        for task in self._tasks:
            best_row = density[task.rows].argmax(axis=0)
            best = density[task.rows][best_row, np.arange(density.shape[1])]
            for worker in np.argsort(-best, kind="stable")[:most].tolist():
                if best[worker] > 0.0:
                    yield float(best[worker]), int(task.rows[best_row[worker]]), worker

    def _displace(self) -> None:
        """Make at most one move on each worker: what loads at once is all that is certain."""
        possible = self._now.allowed & (self._gain > 0.0) & (self._now.busy_s < AHEAD_S)
        net = self._net(possible)
        moves = 0
        for _ in range(_MOST_REJECTED + possible.shape[1]):
            best = int(net.argmax()) if net.size else 0
            if not (net.size and net.flat[best] > 0.0 and moves < self._most_moves):
                return
            row, worker = divmod(best, net.shape[1])
            gone = self._victims(row, worker)
            if gone is None:
                net[row, worker] = -np.inf
                continue
            self._move(row, worker, gone)
            moves += 1
            possible[:, worker] = False
            net = self._net(possible & np.isfinite(net))

    def _net(self, possible: NDArray[np.bool_]) -> FloatArray:
        """Returns the most that a load can gain beyond what it displaces, points a byte, (p, w)."""
        size = np.maximum(self._offer.memory_bytes, 1.0)
        net = np.full(possible.shape, -np.inf)
        left_s = self._left_s()
        for worker in np.flatnonzero(possible.any(axis=0)).tolist():
            rows = np.flatnonzero(possible[:, worker])
            gained = self._gain[rows, worker] * left_s[rows, worker]
            least = self._least_losses(rows, size[rows] - self._now.free_bytes[worker], worker)
            net[rows, worker] = (gained - self._horizon_s * least) / size[rows]
        return net

    def _least_losses(self, rows: IntArray, lacking: FloatArray, worker: int) -> FloatArray:
        """Returns the least loss that makes room for each load, points a second: the instances of
        least loss a byte leave, the last in part; those of the load's own task lose nothing, at
        best. Infinite where all of them are too few.
        """
        pool = np.flatnonzero(self._now.movable[:, worker])
        tasks, line = np.unique(self._task_of[rows], return_inverse=True)
        is_own = tasks[:, None] == self._task_of[pool]
        losses = np.where(is_own, 0.0, self._loss[pool, worker])
        sizes = np.broadcast_to(self._now.bytes[pool, worker], losses.shape)
        order = np.argsort(losses / np.maximum(sizes, 1.0), axis=1, kind="stable")
        first = np.zeros((len(tasks), 1))
        freed, lost = (
            np.cumsum(np.concatenate([first, np.take_along_axis(each, order, 1)], axis=1), axis=1)
            for each in (sizes, losses)
        )
        wanted = np.maximum(lacking, 0.0)
        at = (freed[line] <= wanted[:, None]).sum(axis=1) - 1
        after = np.minimum(at + 1, len(pool))
        begin, end = freed[line, at], freed[line, after]
        slope = (lost[line, after] - lost[line, at]) / np.where(after > at, end - begin, 1.0)
        least = slope * (wanted - begin) + lost[line, at]
        return np.where((after == at) & (wanted > begin), np.inf, least)

    def _cheapest_first(self, worker: int, own_task: int = _NO_TASK) -> list[int]:
        """Returns a worker's instances in the order in which to displace them, by the loss a byte.

        Those of the task that the load serves lose nothing, at best.
        """
        pool = np.flatnonzero(self._now.movable[:, worker])
        losses = np.where(self._task_of[pool] == own_task, 0.0, self._loss[pool, worker])
        density = losses / np.maximum(self._now.bytes[pool, worker], 1.0)
        order: list[int] = pool[np.argsort(density, kind="stable")].tolist()
        return order

    def _victims(self, row: int, worker: int) -> list[int] | None:
        """Returns what to displace for a load; None if the gain is not surely above the loss."""
        best: tuple[float, list[int]] | None = None
        for own_task in (int(self._task_of[row]), _NO_TASK):  # its own first, or by loss alone
            gone = self._take(self._cheapest_first(worker, own_task), row, worker)
            if gone is None:
                return None
            sure = self._sure_gain(row, worker, gone)
            if sure > 0.0 and (best is None or sure > best[0]):
                best = sure, gone
        return best and best[1]

    def _take(self, order: Sequence[int], row: int, worker: int) -> list[int] | None:
        """Returns the first instances, less those not needed, whose room a load needs, if any."""
        size = self._now.bytes[:, worker]
        lacking = float(self._offer.memory_bytes[row] - self._now.free_bytes[worker])
        gone: list[int] = []
        for each in order:
            if lacking <= 0.0:
                break
            gone.append(each)
            lacking -= float(size[each])
        for each in sorted(gone, key=lambda each: -size[each]):
            if lacking + size[each] <= 0.0:
                gone.remove(each)
                lacking += float(size[each])
        return gone if lacking <= 0.0 else None

    def _sure_gain(self, row: int, worker: int, gone: Sequence[int]) -> float:
        """Returns what a move gains, less what it loses and its uncertainty: points."""
        mean = variance = 0.0
        left_s = float(self._left_s(row, worker))
        for number in self._tasks_of(row, *gone):
            before = self._now.held[self._tasks[number].rows, worker]
            without = before.copy()
            without[[self._at[each] for each in gone if self._task_of[each] == number]] = False
            after = without.copy()
            if self._task_of[row] == number:
                after[self._at[row]] = True
            present, less, new = (
                self._states[number].worth_of_worker(worker, held)
                for held in (before, without, after)
            )
            change = self._horizon_s * (less - present) + left_s * (new - less)
            mean += float(self._tasks[number].rate_per_s @ change)
            variance += float(self._tasks[number].variance @ change**2)
        return mean - self._confidence_z * math.sqrt(variance)

    def _move(self, row: int, worker: int, gone: Sequence[int]) -> None:
        self._place(row, worker, gone)
        self.added.append(row)
        for number in self._tasks_of(row, *gone):
            self._update(number)

    def _place(self, row: int, worker: int, gone: Sequence[int]) -> None:
        now = self._now
        for each in gone:
            now.held[each, worker] = now.movable[each, worker] = now.allowed[each, worker] = False
            now.free_bytes[worker] += now.bytes[each, worker]
        now.place(self._offer, row, worker)
        now.movable[row, worker] = True
        for number in self._tasks_of(row, *gone):
            rows = self._tasks[number].rows
            self._states[number].update(worker, now.held[rows, worker])


class _TaskState:
    """The best offer of each worker to the kinds of a task, and what it is worth beside the others.

    ``gain`` and ``blocked`` of the best offers have shape (k, w); a worker without any has 0 and 1.
    What follows from them is kept until a worker changes: most moves that are looked at are not
    made.
    """

    def __init__(self, task: TaskWorth, held: NDArray[np.bool_]) -> None:
        self._task = task
        self._curve: tuple[FloatArray, FloatArray, FloatArray] | None = None
        self._worths: dict[tuple[int, bytes], FloatArray] = {}
        shape = (len(task.rate_per_s), held.shape[1])
        self._gain, self._blocked = np.zeros(shape), np.ones(shape)
        for worker in np.flatnonzero(held[task.rows].any(axis=0)).tolist():
            self.update(worker, held[task.rows, worker])

    def update(self, worker: int, held: NDArray[np.bool_]) -> None:
        """Take in that a worker holds other variants of the task; ``held`` has shape (v,)."""
        self._curve = None
        self._worths.clear()
        self._gain[:, worker], self._blocked[:, worker] = self._best(held)

    def _best(self, held: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
        """Returns the gain, and the blocking, of the best that is held, each of shape (k,)."""
        gain = np.where(held, self._task.gain, 0.0)
        best = gain.argmax(axis=1)
        kinds = np.arange(len(gain))
        gain = gain[kinds, best]
        return gain, np.where(gain > 0.0, self._task.blocked[kinds, best], 1.0)

    def worth_of_worker(self, worker: int, held: NDArray[np.bool_]) -> FloatArray:
        """Returns the points that a worker adds to a query of each kind, shape (k,)."""
        key = worker, held.tobytes()
        worth = self._worths.get(key)
        if worth is None:
            gain, blocked = self._best(held)
            own, own_blocked = self._gain[:, worker], self._blocked[:, worker]
            reached = self._reach(np.stack([gain, np.minimum(gain, own)], axis=1))
            # Without the worker itself, whose probability is a factor up to its own gain:
            beside: FloatArray = reached[:, 0] + reached[:, 1] * (1.0 / own_blocked - 1.0)
            worth = self._worths[key] = (1.0 - blocked) * beside
        return worth

    def changes(self, held: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
        """Returns what loading, and what displacing, each variant changes: points a second, (v, w).

        ``held`` has shape (v, w).
        """
        task, own = self._task, self._gain
        count, workers = task.gain.shape[1], own.shape[1]
        offered = np.where(held, task.gain[:, :, None], 0.0)
        is_best = (offered.argmax(axis=1)[:, None] == np.arange(count)[:, None]) & held
        offered = np.where(is_best, 0.0, offered)
        at = offered.argmax(axis=1)[:, None]
        second = np.take_along_axis(offered, at, 1)[:, 0]
        second_blocked = np.take_along_axis(task.blocked, at[:, 0], 1)
        reached = self._reach(np.concatenate([task.gain, own, second], axis=1))
        odds = 1.0 / self._blocked - 1.0
        present = odds * reached[:, count : count + workers]
        left = (1.0 - second_blocked) * reached[:, count + workers :] * (1.0 + odds)
        lost = (task.rate_per_s[:, None] * np.maximum(present - left, 0.0))[:, None] * is_best
        alone = reached[:, :count, None] + present[:, None]  # of it, beside the other workers
        more = (1.0 - task.blocked)[:, :, None] * alone - present[:, None]
        more = np.where(task.gain[:, :, None] > own[:, None], np.maximum(more, 0.0), 0.0)
        return np.tensordot(task.rate_per_s, more, 1), lost.sum(axis=0)

    def _reach(self, points: FloatArray) -> FloatArray:
        """Returns the integral up to each of these gains, (k, m), of P(no better offer is free)."""
        if self._curve is None:
            self._curve = self._integral()
        edges, none_free, sums = self._curve
        kinds = np.arange(len(edges))[:, None]
        at = (edges[:, None, 1:] <= points[:, :, None]).sum(axis=2)
        reached: FloatArray = sums[kinds, at] + (points - edges[kinds, at]) * none_free[kinds, at]
        return reached

    def _integral(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns the workers' gains in order after a 0, P(no better offer is free) from each on,
        and the integral up to each, of shape (k, w + 1)."""
        order = np.argsort(self._gain, axis=1)
        kinds = np.arange(len(order))[:, None]
        edges = self._gain[kinds, order]
        factors = self._blocked[kinds, order]
        from_here = np.cumprod(factors[:, ::-1], axis=1)[:, ::-1]
        none_free: FloatArray = np.concatenate([from_here, np.ones((len(order), 1))], axis=1)
        edges = np.concatenate([np.zeros((len(order), 1)), edges], axis=1)
        areas = np.diff(edges, axis=1) * none_free[:, :-1]
        sums = np.concatenate([np.zeros((len(order), 1)), np.cumsum(areas, axis=1)], axis=1)
        return edges, none_free, sums
