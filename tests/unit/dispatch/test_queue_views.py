"""What an group is shown of the deferred queues is at each moment what there is, in order."""

from __future__ import annotations

import random

import pytest

from modelless.controller.dispatch.fair_shares import Tenants
from modelless.controller.dispatch.queues import WaitingQueries
from modelless.controller.dispatch.worker_groups import GroupsByScope, ServingGroups, WorkerGroup
from modelless.policies.views import QueryView, QueueView

SCOPES = tuple(f"task-{number}" for number in range(12))
GROUPS = tuple(WorkerGroup(name, (), 0.0) for name in ("cpu", "gpu", "npu"))


class Plant:
    """Deferred queries, and who can serve them."""

    def __init__(self) -> None:
        self.can = {group: set(SCOPES[number::2]) for number, group in enumerate(GROUPS)}
        self.groups_by_scope = GroupsByScope(self._find, len(SCOPES))
        self.waiting = WaitingQueries(Tenants(1000))
        self.ids: list[int] = []

    def _find(self, scope: str) -> ServingGroups:
        return {group for group, scopes in self.can.items() if scope in scopes}

    def defer(self, query_id: int, scope: str) -> None:
        query = QueryView(query_id, scope, 0.0, float(query_id % 7), 0.0, float("inf"), 1)
        self.waiting.defer_query(query)
        self.ids.append(query_id)

    def take(self, place: int) -> None:
        self.waiting.remove_query(self.ids.pop(place))

    def shown(self, group: WorkerGroup) -> list[QueueView]:
        return self.waiting.visible.find_views(group, self.groups_by_scope)

    def there(self, group: WorkerGroup) -> list[QueueView]:
        return [
            queue.view for key, queue in self.waiting.deferred.items() if key[0] in self.can[group]
        ]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_there_is(seed: int) -> None:
    chance, plant = random.Random(seed), Plant()
    leave_share = chance.choice([0.3, 0.5, 0.6])  # long queues, and ones that come and go
    for query_id in range(3000):
        if plant.ids and chance.random() < leave_share:
            plant.take(chance.randrange(len(plant.ids)))
        else:
            plant.defer(query_id, chance.choice(SCOPES))
        if chance.random() < 0.002:
            plant.can[chance.choice(GROUPS)] = set(chance.sample(SCOPES, 5))
            plant.groups_by_scope.clear()
        if chance.random() < 0.3:
            group = chance.choice(GROUPS)
            shown, there = plant.shown(group), plant.there(group)
            assert all(one is other for one, other in zip(shown, there, strict=True))


def test_one_that_is_not_asked_for_long_misses_nothing() -> None:
    plant = Plant()
    plant.defer(0, SCOPES[0])
    assert len(plant.shown(GROUPS[0])) == 1
    for query_id in range(1, 6000):  # more than are kept
        plant.defer(query_id, SCOPES[2])
        if query_id > 3:
            plant.take(1)
    plant.take(0)
    assert [queue.scope for queue in plant.shown(GROUPS[0])] == [SCOPES[2]]
    assert plant.shown(GROUPS[0]) == plant.there(GROUPS[0])


def test_what_was_shown_is_nobodys_to_change() -> None:
    plant = Plant()
    plant.defer(0, SCOPES[0])
    plant.shown(GROUPS[0]).clear()
    assert plant.shown(GROUPS[0]) == plant.there(GROUPS[0])
