"""The clairvoyant bound: what no policy exceeds on the same world and the same arrivals.

A linear program over windows of time. For each kind of query (task, limits, items, distance), each
window of arrival and each window in which a batch may start, it decides how much is served by which
variant on which device class in batches of which size; it knows all arrivals. That every policy's
expected figures satisfy such constraints, so that a linear program over them bounds all policies,
is the idea of the achievable region (Bertsimas, Paschalidis and Tsitsiklis, Annals of Applied
Probability 1994, for multiclass queueing networks); the terms here are the simulator's own.

**What is claimed.** The bound holds in expectation over the devices' noise, given the seed's
arrivals, for every policy that does not foresee the draws; no seam shows them. One run may exceed
it by chance: batches' latencies are independent, so by about their coefficient of variation over
the root of their number, which is some tenths of a per cent in worlds of a minute.

**Why it holds.** Take any policy, and let the program's variables be the expected numbers of
attempts of each sort that it makes. They satisfy every constraint:

- *Device time.* What a batch takes on an undisturbed device is drawn independently of all that led
  to its choice. So over the batches that start in a window, the expected sum of draws is the
  expected sum of means (a martingale). A batch of ``b`` items has mean ``m(b)``, and an item's
  share is at least ``m(b) / b``, full or not. All sizes are on offer, each with its own chance of
  being late, and the program picks: its cost is the lower envelope. Batches count where they start;
  what is left of them at a window's end is carried over, and no more is expected than a batch's
  mean residual life a worker. What a class can do in a window: see ``device_work``.
- *Two batches.* A worker that is some way off is handed its next batch while it runs one, and no
  third: the next but one sets out when the first is back. So that many, and no more, count from
  their start until two hops after their end; see ``device_work.hand_over``. An item's share of
  that is at least the least of all batches on offer. (Not where there are faults or scaling.)
- *Deadlines.* A batch starts no earlier than its queries' arrival and the way to the device. Its
  answer is in time with at most the chance that a draw fits into what is left then, less the way
  back. That is largest for the latest arrival of a window and the earliest start of another.
- *Once.* A query is attempted once. Where a lost worker or a batch given up may cause a second
  attempt, it is only required to be good at most once.
- *Memory and loads.* What fits no device of a class runs on none, and if the start is not warm,
  nothing runs before a first load has ended. More is asked of a class only where it is short of
  memory: where all its workers together cannot hold every variant that could serve there. (It must
  have the same workers all the time, too.) Then further variables are the expected numbers of
  copies that are ready when a window begins, and of loads that end in it; see ``memory``.
  Arrivals are given, so whether a copy is ready is one event for all queries of a kind and a
  window: of them, a variant serves in expectation no more than their number times its chance, which
  is at most the copies ready when they begin to come and the loads that end while they may start.
  Whatever is ready or being loaded at a moment is within memory, and a worker loads one at a time.
  As a load takes no less than its usual time (faults may quicken it: that counts), and takes memory
  all the while, it is under way at every earlier moment that is no further back. A copy runs one
  batch at a time, so its work that starts in a window fits into that and a batch's mean residual
  life; this is asked only where nothing is unloaded while it runs, which is as long as no worker is
  lost, and no batch takes so long that it is given up. This is a second program, as its windows
  have to be longer, and the lesser optimum of both counts.
- *Left out*, which only raises the optimum: that queries and batches are whole and are not split
  over windows; that a batch's items are of one task, all there at its start, and fill it; that
  copies are whole, and each in the memory of one worker; memory and loads, but for what was said;
  queues' bounds, planning intervals, failing loads, slowed workers, and what neighbours slow beyond
  what any order of starts must suffer.
- *Faults and scaling.* Lost workers are left out while they are away and others cannot have been
  started; sites that are cut off start nothing, and their clients' queries are lost. A class that
  may grow has ``max_workers`` from ``start_s`` on.

Windows only loosen the bound, as every query may start in all windows that its time touches. They
are equal at first, and shorter in a further program where the first found device time short.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modelless.controller.sim.bound.problem import Problem, arrivals_by_kind, placed_on, stocks_of
from modelless.controller.sim.worlds.profiles import build_fleet
from modelless.controller.sim.worlds.world import WorldFile

_TOLERANCE = 1e-7
"""The solver's, in the bound's favour."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What no policy exceeds; see the module for what that means.

    Attributes:
        value_per_query: as in a run's summary, 0 to 1; 0 if there are no queries.
        attainment: as in a run's summary, 0 to 1; 1 if there are no queries, as none is violated.
        why: what keeps them below 1, and how coarse the bound is.
    """

    value_per_query: float
    attainment: float
    why: str


def clairvoyant_bound(
    file: WorldFile, *, seed: int | None = None, home: Path | None = None
) -> Bound:
    """Bound the figures that any policy can reach in a world.

    Args:
        file: the world; its policies do not matter.
        seed: of the arrivals; instead of the world's.
        home: of the store, for worlds with tasks from there.

    Raises:
        InvalidInputError: the world, a table or a trace of it does not fit.
        EnvironmentUnfitError: the solver failed.
    """
    world = file.world
    arrivals, total = arrivals_by_kind(file, world.seed if seed is None else seed)
    if not total:
        return Bound(0.0, 1.0, "no query comes")
    if not arrivals:
        return Bound(0.0, 0.0, "every query comes from a site cut off")
    placed = placed_on(world, build_fleet(file, home))
    problem = Problem(world, arrivals, placed, {})
    edges_s = problem.equal_windows()
    first = problem.optimum(edges_s, weighted=True)
    finer_s = problem.refined(edges_s, first.is_scarce)
    value = first if finer_s is edges_s else problem.optimum(finer_s, weighted=True)
    good = problem.optimum(finer_s, weighted=False)
    most = [value.worth, good.worth]
    why = problem.why(total, value, finer_s)
    stocks = stocks_of(world, arrivals, placed)
    if stocks:
        problem = Problem(world, arrivals, placed, stocks)
        edges_s = problem.equal_windows()
        for place, weighted in enumerate((True, False)):
            most[place] = min(most[place], problem.optimum(edges_s, weighted=weighted).worth)
        held = ", ".join(
            f"{world.devices[number].name} holds {stock.share:.0%} of what could serve there"
            for number, stock in stocks.items()
        )
        why += f"; memory is short: {held} (windows of {edges_s[1]:.2g} s)"
    per_query, attainment = (min(worth / total + _TOLERANCE, 1.0) for worth in most)
    return Bound(per_query, attainment, why)
