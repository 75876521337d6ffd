"""What a policy that sees workers one by one knows of all: what there is, what time is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from operator import attrgetter

import numpy as np

from modelless.policies.scopes import in_scope
from modelless.policies.selection.best_value.admission import (
    EVERYONE,
    Demand,
    admission_of,
    demand_of,
)
from modelless.policies.selection.best_value.batches import Coming
from modelless.policies.selection.best_value.classes import prices_of_classes, scarcity
from modelless.policies.selection.best_value.fleet import Fleet
from modelless.policies.selection.best_value.menu import Menu, make_menu
from modelless.policies.selection.best_value.price import (
    ROUNDED_BY,
    Devices,
    Kind,
    Price,
    Rates,
    price_of_time,
)
from modelless.policies.selection.best_value.table import Chances, ValueTable
from modelless.policies.views import QueryView, QueueView, ResidentView, WorkerView

_MENUS_KEPT = 16_384
_CHANCES_KEPT, _TABLES_KEPT = 512, 1024
_BUSY_MEMORY_S = 1.0
_SURVEY_S = 0.25
_CLASSES_PRICED_S = 0.25  # that takes some milliseconds
_BACKLOG_SAMPLED = 64  # queries of a queue
_PRICES_PER_DOUBLING = 16
_SMOOTH_FROM = 36.0  # open queries, from which on chance evens out
_LONGEST_S = 10.0
_OVERTAKEN = 6.0  # by so many for each ahead, where a class has no time to spare
_COUNTED_KEPT = 8192
_LATELY_S = 0.25  # in which a crowd shows, before it counts in the mean of some seconds
_CROWD_LASTS = 0.4  # of the memory; who can wait longer outlasts a crowd
_CROWDED = 1.5  # so many times the device time there is may be asked for by what waits just now

_MenuKey = tuple[int, int, float, str]
"""Identity of the residents, largest batch, lead, scope."""
_Waiting = tuple[QueryView, int, float]
"""A query, how many items it stands for, and the time it has left."""
_Shelf = tuple[int, float, tuple[ResidentView, ...]]
"""Largest batch, lead, and the residents of a scope, by id."""


class Market:
    """Demand, supply and the price of device time.

    Args:
        target_utilisation, batching_share, miss_penalty: see ``value_price.price_of_time``.
        memory_s: how long arrivals are remembered.
        reprice_s: how often the price is found anew.

    Attributes:
        fleet: the workers.
        admission: who is served if not everyone can be.
        patient_s: who has longer than this can wait until a crowd has gone.
    """

    def __init__(
        self,
        target_utilisation: float,
        batching_share: float,
        miss_penalty: float,
        memory_s: float,
        reprice_s: float,
    ) -> None:
        self.fleet = Fleet()
        self._target_utilisation = target_utilisation
        self._batching_share = batching_share
        self._miss_penalty = miss_penalty
        self._reprice_s = reprice_s
        self.patient_s = _CROWD_LASTS * memory_s
        self._rates = Rates[Demand](memory_s)
        self._lately = Rates[Demand](_LATELY_S)
        self._squares = Rates[Demand](_LATELY_S)
        self._counted: dict[int, None] = {}  # the last queries, by age
        self._busy = Rates[str](_BUSY_MEMORY_S)  # workers at work, by class
        # By scope, the least time for a query: of the workers met, and of all that are ready.
        self._met_least_s: dict[str, float] = {}
        self._ready_least_s: dict[str, float] = {}
        self._price_of: dict[str, float] = {}
        self._calm_price_of: dict[str, float] = {}
        self._scarcity_of: dict[str, float] = {}
        self._lasting_price_of: dict[str, float] = {}
        self._menus: dict[_MenuKey, tuple[Mapping[str, ResidentView], Menu]] = {}
        self._shelves: dict[_Shelf, Menu] = {}  # by what a menu is made of
        self._chances: dict[Menu, Chances] = {}
        self._tables: dict[tuple[Menu, float], ValueTable] = {}
        self._devices: dict[str, Devices] = {}
        self._mean: dict[Demand, float] = {}
        self._highest = 0  # priority
        self._coming: dict[tuple[str, int], tuple[list[str], Coming]] = {}
        self._others_of: dict[tuple[str, str], dict[str, Menu]] = {}
        self._price = Price(0.0, {}, 1.0, None)
        self._turns = 0.0
        self.admission = EVERYONE
        self._priced_s = self._classes_priced_s = self._surveyed_s = -math.inf
        import_module("scipy.optimize")  # which takes half a second, before a query waits for it

    def __getstate__(self) -> dict[str, object]:
        # What the core shows are read-only views, which do not pickle; it will be seen again.
        return {
            **vars(self),
            "_menus": {},
            "_shelves": {},
            "_chances": {},
            "_tables": {},
            "_counted": {},
        }

    # -- what happens -------------------------------------------------------------------------

    def on_query(self, query: QueryView, now_s: float) -> None:
        """A query has come in."""
        if query.query_id in self._counted:
            return  # asked again: its worker was lost, or it may be served late
        self._counted[query.query_id] = None
        if len(self._counted) > _COUNTED_KEPT:
            del self._counted[next(iter(self._counted))]
        demand = demand_of(query)
        self._rates.count(demand, query.items, now_s)
        if demand.kind[2] <= self.patient_s:
            self._lately.count(demand, query.items, now_s)
            self._squares.count(demand, query.items**2, now_s)

    def on_ready(self, scope: str, least_s: float) -> None:
        """The quickest of all that is ready for a scope takes ``least_s`` for a query."""
        self._ready_least_s[scope] = least_s

    def on_idle(self, worker: WorkerView, queues: Sequence[QueueView], now_s: float) -> None:
        """A worker has fallen idle, with these queues before it."""
        self.fleet.on_idle(worker, now_s)
        if now_s - self._surveyed_s >= _SURVEY_S:
            for queue in queues:
                self.menu(worker, queue.scope)
            self._survey(now_s)
        if now_s - self._priced_s >= self._reprice_s:
            self._find_price(queues, now_s)

    def on_run(self, worker: WorkerView, busy_s: float, latency_s: float, now_s: float) -> None:
        """The worker, just idle, was given a batch; see ``Fleet.on_run``."""
        self.fleet.on_run(worker, busy_s, latency_s, now_s)
        self._busy.count(worker.device_class, busy_s, now_s)

    # -- what is known ------------------------------------------------------------------------

    def others(self, device_class: str, scope: str) -> Mapping[str, Menu]:
        """What other device classes than this offer for a scope."""
        return self._others_of.get((device_class, scope), {})

    def menu(self, worker: WorkerView, scope: str) -> Menu:
        """The worker's menu for a scope, kept until its residents or their estimates change."""
        residents = worker.residents
        key = (id(residents), worker.max_batch, worker.lead_s, scope)
        known = self._menus.get(key)
        if known is not None and known[0] is residents:
            return known[1]
        names = sorted([name for name in residents if in_scope(name, scope)])
        shelf = worker.max_batch, worker.lead_s, tuple([residents[name] for name in names])
        if len(self._menus) >= _MENUS_KEPT:
            self._menus.clear()
            self._shelves.clear()
        menu = self._shelves.get(shelf)
        if menu is None:
            menu = self._shelves[shelf] = make_menu(shelf[2], worker.max_batch, worker.lead_s)
        self._menus[key] = (residents, menu)
        if scope not in self._met_least_s:
            self._surveyed_s = -math.inf  # so that the next call knows of it
        return menu

    def table(self, menu: Menu, device_class: str) -> ValueTable:
        """The value function of a menu at the class's price of today."""
        return self._table(menu, self.price_on(device_class))

    def calm_table(self, menu: Menu, device_class: str) -> ValueTable:
        """The value function for the patient: at the price that the mean of some seconds makes.

        That is at most today's.
        """
        return self._table(menu, self._calm_price_of.get(device_class, 0.0))

    def _table(self, menu: Menu, price: float) -> ValueTable:
        key = (menu, price)
        table = self._tables.get(key)
        if table is None:
            chances = self._chances.get(menu)
            if chances is None:
                if len(self._chances) >= _CHANCES_KEPT:
                    self._chances.clear()
                chances = self._chances[menu] = Chances(menu)
            if len(self._tables) >= _TABLES_KEPT:
                del self._tables[next(iter(self._tables))]
            table = self._tables[key] = ValueTable(chances, price, self._miss_penalty)
        return table

    def least_for(self, scope: str) -> float:
        """The least time that any worker, met or not, takes for a query; 0 if unknown."""
        return min(self._met_least_s.get(scope, 0.0), self._ready_least_s.get(scope, math.inf))

    def price_on(self, device_class: str) -> float:
        """What a second of the class is worth, accuracy points."""
        return self._price_of.get(device_class, 0.0)

    def coming(
        self, device_class: str, priority: int, next_idle_s: float, now_s: float
    ) -> Coming | None:
        """What comes of higher priorities that a class can serve; None if nothing does.

        Args:
            device_class, priority: whose, and above which.
            next_idle_s: in how many seconds another worker of the class falls idle.
            now_s: the time.
        """
        if priority >= self._highest:
            return None
        key = device_class, priority
        if key not in self._coming:
            self._coming[key] = self._find_coming(device_class, priority)
        others, coming = self._coming[key]
        if not len(coming.patience_s):
            return None
        free_s = [self.fleet.free(name, now_s)[1] for name in others]
        return coming._replace(next_idle_s=min([next_idle_s, *free_s]))

    def _find_coming(self, device_class: str, priority: int) -> tuple[list[str], Coming]:
        """And the other classes that can serve some of it."""
        higher = {each: rate for each, rate in self._mean.items() if each.priority > priority}
        others: set[str] = set()
        points_per_s, patience_s = [], []
        for (scope, min_accuracy, latency_s), rate in _by_kind(higher).items():
            typical_s = math.sqrt(ROUNDED_BY) * latency_s
            worth, can_wait_s = 0.0, {}
            for name, device in self._devices.items():
                menu = device.menus.get(scope)
                reach = menu.reach(min_accuracy) if menu is not None else 0
                if menu is not None and menu.latency_s(reach) < typical_s:
                    can_wait_s[name] = typical_s - menu.latency_s(reach)
                    worth = self._miss_penalty + float(menu.accuracy_percent[reach - 1])
            if can_wait_s.get(device_class, math.inf) < math.inf:
                others |= can_wait_s.keys() - {device_class}
                points_per_s.append(rate * worth)
                patience_s.append(can_wait_s[device_class])
        return sorted(others), Coming(np.array(points_per_s), np.array(patience_s), math.inf)

    def delay_of(self, device_class: str) -> float:
        """How many times as long as those ahead say a query waits for a class.

        More urgent ones will come before its turn; the more, the less time the class has to spare.
        """
        return 1.0 + _OVERTAKEN * self._scarcity_of.get(device_class, 0.0)

    def _survey(self, now_s: float) -> None:
        """Take stock: which workers are there, and what each class offers by scope."""
        self._surveyed_s = now_s
        self.fleet.forget_silent(now_s)
        counts = self.fleet.counts()
        class_of = {id(held): name for name in counts for held in self.fleet.residents(name)}
        menus: dict[str, dict[str, Menu]] = {name: {} for name in counts}
        self._met_least_s = {}
        self._menus = {key: known for key, known in self._menus.items() if key[0] in class_of}
        for (held, _, _, scope), (_, menu) in self._menus.items():
            if not menu.variant_ids:
                continue
            of_class = menus[class_of[held]]
            kept = of_class.get(scope)
            if kept is None or _offers_more(menu, kept):
                of_class[scope] = menu
            least_s = self._met_least_s.get(scope, math.inf)
            self._met_least_s[scope] = min(menu.least_s, least_s)
        live = {menu for _, menu in self._menus.values()}
        self._shelves = {shelf: menu for shelf, menu in self._shelves.items() if menu in live}
        self._chances = {menu: known for menu, known in self._chances.items() if menu in live}
        self._tables = {key: known for key, known in self._tables.items() if key[0] in live}
        self._devices = {name: Devices(counts[name], offered) for name, offered in menus.items()}
        self._others_of = {
            (name, scope): {
                other: menus[other][scope]
                for other in menus
                if other != name and scope in menus[other]
            }
            for name in menus
            for scope in menus[name]
        }

    def _find_price(self, queues: Sequence[QueueView], now_s: float) -> None:
        """The price at which what comes in and what waits fits, and who is left out for that."""
        self._priced_s = now_s
        mean = self._mean = self._rates.per_s(now_s)
        self._highest = max([demand.priority for demand in mean], default=0)
        self._coming = {}
        backlog = list(_backlog(queues, now_s))
        lasting = dict(mean)
        for demand, rate in self._of_the_patient(backlog).items():
            lasting[demand] = max(lasting.get(demand, 0.0), rate)
        calm = self._price_of_time(lasting, 0.0)
        are_scarce = any(self._scarcity_of.values())  # else none of these prices would count
        if are_scarce and now_s - self._classes_priced_s >= _CLASSES_PRICED_S:
            self._classes_priced_s = now_s
            self._lasting_price_of = prices_of_classes(
                _by_kind(lasting),
                self._devices,
                self._target_utilisation,
                self._batching_share,
                self._miss_penalty,
            )
        rates, soon_s = self._rates_now(mean, now_s), math.inf
        patient: list[Demand] = []
        if calm.short is None:
            # There will be time for the patient; now they are in nobody's way.
            soon_s = self.patient_s
            patient = [each for each in lasting if each.kind[2] > soon_s]
            rates = {each: rate for each, rate in rates.items() if each.kind[2] <= soon_s}
        usual = self._price_of_time(rates, calm.per_s)
        admission = admission_of(usual.short, rates, patient)
        # Queries that come before the first of them is due, which says how smooth the demand is: a
        # few come in clumps, and what waits is then no sign of what can wait.
        open_queries = sum([rate * min(each.kind[2], _LONGEST_S) for each, rate in rates.items()])
        clumped = min(math.sqrt(_SMOOTH_FROM / max(open_queries, 1.0)), 1.0)
        waiting = {key: clumped * rate * admission.share(key) for key, rate in rates.items()}
        for query, items, slack_s in backlog:
            if slack_s <= soon_s and (not admission or admission.admits(query)):
                # What waits must be done within its slack: that is a rate, too.
                demand = demand_of(query)
                rate = items / max(slack_s, self._reprice_s)
                waiting[demand] = waiting.get(demand, 0.0) + rate
        self._price = self._price_of_time(waiting, usual.per_s)
        if self._price.short is not None:
            # What waits may be a short crowd, for which there will be time.
            crowded = self._price_of_time(waiting, usual.per_s, _CROWDED)
            admission = admission.times(admission_of(crowded.short, waiting, patient))
        self.admission = admission
        self._put_prices(calm, self._rounding(calm, usual), now_s)

    def _put_prices(self, calm: Price, whole: Callable[[float], int], now_s: float) -> None:
        """What a second of each class is worth, and how scarce its time is."""
        busy = self._busy.per_s(now_s)
        self._price_of, self._calm_price_of, self._scarcity_of = {}, {}, {}
        for name, device in self._devices.items():
            calm_speed = calm.speed.get(name, 1.0)
            calm_price = calm.per_s * calm_speed
            price = self._price.per_s * self._price.speed.get(name, calm_speed)
            if len(self._devices) > 1:
                scarce = scarcity(busy.get(name, 0.0) / device.workers)
                self._scarcity_of[name] = scarce
                lasting = self._lasting_price_of.get(name, 0.0)
                price, calm_price = max(price, lasting), max(calm_price, lasting)
                price, calm_price = scarce * price, scarce * calm_price
            self._price_of[name] = _rounded(price, whole)
            self._calm_price_of[name] = _rounded(min(calm_price, price), whole)

    def _of_the_patient(self, backlog: Sequence[_Waiting]) -> dict[Demand, float]:
        """Items a second that must be done of those who wait and are patient."""
        rates: dict[Demand, float] = {}
        for query, items, slack_s in backlog:
            if slack_s > self.patient_s:
                demand = demand_of(query)
                rates[demand] = rates.get(demand, 0.0) + items / slack_s
        return rates

    def _rounding(self, calm: Price, usual: Price) -> Callable[[float], int]:
        """Down or up to a price that is kept: for the more accurate variant, or for the quicker.

        That mixes those who are indifferent. But where some are left out it is down: who is in must
        be worth the price.
        """
        price = max(
            (calm, usual, self._price), key=attrgetter("per_s")
        )  # of equals that which was found first
        self._turns += price.slower_share
        is_down = self._turns >= 1.0
        self._turns %= 1.0
        return math.floor if is_down or self.admission else math.ceil

    def _rates_now(self, mean: Mapping[Demand, float], now_s: float) -> dict[Demand, float]:
        """Items a second: the mean of some seconds, or what has surely come to be more lately.

        Of the patient the mean counts: for them there is time later, too.
        """
        rates = dict(mean)
        squares = self._squares.per_s(now_s)
        for demand, rate in self._lately.per_s(now_s).items():
            # A standard deviation less, as queries come by chance, with so many items each.
            surely = rate - math.sqrt(squares.get(demand, rate) / _LATELY_S)
            if surely > rates.get(demand, 0.0):
                rates[demand] = surely
        return rates

    def _price_of_time(
        self, rates: Mapping[Demand, float], least_per_s: float, times: float = 1.0
    ) -> Price:
        """With so many times the device time there is."""
        return price_of_time(
            _by_kind(rates),
            self._devices,
            times * self._target_utilisation,
            self._batching_share,
            self._miss_penalty,
            least_per_s,
        )


def _by_kind(rates: Mapping[Demand, float]) -> dict[Kind, float]:
    by_kind: dict[Kind, float] = {}
    for demand, rate in rates.items():
        by_kind[demand.kind] = by_kind.get(demand.kind, 0.0) + rate
    return by_kind


def _backlog(queues: Sequence[QueueView], now_s: float) -> Iterator[_Waiting]:
    """A sample of what waits."""
    for queue in queues:
        every = -(-len(queue.queries) // _BACKLOG_SAMPLED)
        for query in queue.queries[every // 2 :: every]:
            yield query, every * query.items, query.deadline_s - now_s


def _offers_more(menu: Menu, other: Menu) -> bool:
    """More variants, or as many and quicker ones."""
    count, others = len(menu.variant_ids), len(other.variant_ids)
    return (count, other.least_s) > (others, menu.least_s)


def _rounded(price: float, whole: Callable[[float], int]) -> float:
    """One of a few prices, so that tables can be kept."""
    if price < 1.0:
        return 0.0
    steps = whole(math.log2(price) * _PRICES_PER_DOUBLING)
    return float(2.0 ** (steps / _PRICES_PER_DOUBLING))
