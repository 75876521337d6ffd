"""Versions between the store, the control loop and its members: without Ray, with a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelless.common.errors import StoreError
from modelless.controller.api.feedback import Feedback
from modelless.controller.config import Settings
from modelless.controller.control import served_versions
from modelless.controller.control.machine import ControlTimes
from modelless.controller.control.messages import (
    KeepEvidence,
    MemberReport,
    PromoteVersion,
    RollBackVersion,
    VersionEffect,
    VersionsChanged,
)
from modelless.controller.control.served_versions import Service
from modelless.controller.live import version_follower
from modelless.controller.live.control.control_loop import ControlLoop
from modelless.controller.live.control.version_store import VersionStore
from modelless.controller.live.knowledge import Knowledge, Rereader, read_knowledge
from modelless.controller.live.settings_revisions import change_settings
from modelless.controller.live.version_follower import VersionFollower
from modelless.policies.reasons import Reason
from modelless.policies.views import Instance, WorkerState
from modelless.profiler.measure.records import Records
from modelless.variants.registry.promotion import begin_trial, promote, read_lines, rollback
from modelless.variants.registry.registry import Registry, open_registry
from modelless.variants.registry.removal import remove, retire
from modelless.variants.registry.versions import Line, Trial, TrialRules
from modelless.variants.vocabulary import Accuracy, Engine, Precision
from tests.unit.cli.tiny import (
    MODEL,
    PUBLISHED,
    TASK,
    measurement,
    tiny_bytes,
)

NAME = "pixels/mean/small"
SERVED = {"pixels/mean/small": 1, "pixels/mean/medium": 1, "pixels/mean/large": 1}


@contextmanager
def opened(home: Path) -> Iterator[Registry]:
    with closing(open_registry(home)) as registry:
        yield registry


def profile(home: Path, variant_id: str, *batches: int) -> None:
    with opened(home) as registry:
        for batch in batches:
            Records(registry.store).add(measurement(variant_id, batch, 5.0 * batch))


def add_version(home: Path, batches: tuple[int, ...] = (1, 2, 4, 8), name: str = "small") -> str:
    """A second version of a variant, profiled at these batches."""
    with opened(home) as registry:
        added = registry.register_variant(
            task=TASK.name, model=MODEL.name, name=name, precision=Precision.FP32,
            engine=Engine.ONNXRUNTIME_CPU, accuracy=Accuracy(71.0, "top-1", PUBLISHED, "a page"),
            artifact=tiny_bytes(9.0),
        )  # fmt: skip
    profile(home, added.id, *batches)
    return added.id


def add_task(registry: Registry, name: str) -> None:
    """Another task with one variant."""
    registry.register_variant(
        task=replace(TASK, name=name), model=replace(MODEL, task=name), name="small",
        precision=Precision.FP32, engine=Engine.ONNXRUNTIME_CPU,
        accuracy=Accuracy(71.0, "top-1", PUBLISHED, "a page"), artifact=tiny_bytes(9.0),
    )  # fmt: skip


def try_version(home: Path, **rules: Any) -> Trial:
    version = add_version(home)
    with opened(home) as registry:
        return begin_trial(registry.store, version, 0.2, TrialRules(**rules), "ann", "a try")


def line(home: Path) -> Line:
    with opened(home) as registry:
        return read_lines(registry.store).by_name[NAME]


class TestStore:
    def test_a_change_in_the_store_reaches_whoever_waits(self, home: Path) -> None:
        async def talk() -> tuple[Service, Service]:
            seen: list[VersionsChanged] = []
            store = VersionStore(home, SERVED, lambda: SERVED, seen.append)
            before = await store.watch("")
            version = add_version(home)
            await store.look()
            assert store.latest.service == before  # registering changes nothing
            waiting = asyncio.create_task(store.watch(before.token))
            with opened(home) as registry:
                promote(registry.store, version, "ann", "better")
            await store.look()
            assert await waiting == seen[0].service
            return before, seen[0].service

        before, after = asyncio.run(talk())
        assert before.lines[NAME] == Line(NAME, 1)
        assert after.lines[NAME] == Line(NAME, 2, (1,))
        assert after.token != before.token

    @pytest.mark.parametrize(
        ("end", "current", "earlier"), [(RollBackVersion, 1, ()), (PromoteVersion, 2, (1,))]
    )
    def test_the_end_of_a_trial_is_written_and_published(
        self, home: Path, end: type[VersionEffect], current: int, earlier: tuple[int, ...]
    ) -> None:
        async def talk() -> Service:
            store = VersionStore(home, SERVED, lambda: SERVED, lambda _: None)
            for _ in range(2):  # the machine repeats it
                store.write(end(trial, "so it is", {"share": 0.2}))
            await store.look()
            return store.latest.service

        trial = try_version(home)
        service = asyncio.run(talk())
        assert line(home) == service.lines[NAME] == Line(NAME, current, earlier)

    def test_what_is_registered_is_served_once_registering_ends(self, home: Path) -> None:
        async def talk() -> list[set[str]]:
            store = VersionStore(home, SERVED, Rereader(home, Settings()).served, lambda _: None)
            await store.look()
            served = []
            for name in ("tiny", "huge", None):
                if name is not None:
                    add_version(home, name=name)
                await store.look()
                served.append(set(store.latest.service.lines) - set(SERVED))
            return served

        new = {"pixels/mean/tiny", "pixels/mean/huge"}
        assert asyncio.run(talk()) == [set(), set(), new]

    def test_what_is_retired_leaves_and_is_gone_and_comes_back(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def talk() -> list[tuple[set[str], set[str]]]:
            store = VersionStore(home, SERVED, Rereader(home, Settings()).served, lambda _: None)
            await store.look()
            seen = []

            async def look() -> None:
                await store.look()
                await store.look()
                service = store.latest.service
                seen.append((set(service.retired), set(service.gone)))

            with opened(home) as registry:
                retire(registry, "pixels", "ann", "old", undo=False)
                await look()
                monkeypatch.setattr(served_versions, "LEAVE_S", 0.0)
                await look()
                retire(registry, NAME, "ann", "no", undo=True)
                await look()
                remove(registry, "pixels/mean/large", "ann", "old", {}, home / "making", is_up=True)
                await look()
            return seen

        names = set(SERVED)
        others = names - {NAME}
        assert asyncio.run(talk()) == [
            (names, set()), (names, names), (others, others), (others, others),
        ]  # fmt: skip

    def test_what_new_profiles_show_to_be_dominated_is_not_served(self, home: Path) -> None:
        async def talk() -> set[str]:
            store = VersionStore(home, SERVED, Rereader(home, Settings()).served, lambda _: None)
            await store.look()
            for batch in (1, 2, 4, 8):  # as accurate as small and slower than any
                profile(home, f"{NAME}@1", batch)
            with opened(home) as registry:
                for batch in (1, 2, 4, 8):
                    row = measurement(f"{NAME}@1", batch, 500.0 * batch)
                    Records(registry.store).add(row)
            await store.look()
            assert not store.latest.service.retired
            store.renew()
            await store.look()
            return set(store.latest.service.retired)

        assert asyncio.run(talk()) == {NAME}

    def test_evidence_is_kept_for_a_control_loop_that_starts_anew(self, home: Path) -> None:
        async def talk() -> list[VersionsChanged]:
            store = VersionStore(home, SERVED, lambda: SERVED, lambda _: None)
            store.write(KeepEvidence(trial, {"slow_step": 3}))
            await store.look()
            return [store.latest, VersionStore(home, SERVED, lambda: SERVED, lambda _: None).latest]

        trial = try_version(home)
        first, second = asyncio.run(talk())
        assert first.service.trials == second.service.trials == (trial,)
        assert (first.evidence, second.evidence) == ({}, {trial.number: {"slow_step": 3}})


class TestFollower:
    def test_what_is_taken_back_does_not_wait_for_the_store(self, home: Path) -> None:
        seen: list[str] = []

        async def talk() -> Knowledge:
            known = asyncio.get_running_loop().create_future()
            services = [Service("a", {NAME: Line(NAME, 2, (1,))})]

            async def watch(token: str) -> Service:
                if token:
                    await asyncio.Event().wait()  # nothing new comes
                return services[0]

            class Seen(Rereader):
                def __call__(self) -> Knowledge:
                    seen.append("read")
                    return super().__call__()

            follower = VersionFollower(
                knowledge,
                Seen(home, Settings()),
                watch,
                lambda _: seen.append("served"),
                known.set_result,
            )
            task = asyncio.create_task(follower.follow_forever())
            result: Knowledge = await asyncio.wait_for(known, 20.0)
            task.cancel()
            return result

        knowledge = read_knowledge(home, Settings())
        version = add_version(home)
        learnt = asyncio.run(talk())
        assert seen == ["served", "read"]
        assert version in learnt.catalog.versions
        assert learnt.catalog.variants == knowledge.catalog.variants
        facts = {each.variant_id: each for each in learnt.variant_facts(1)}
        assert facts[version].latency_s == {"cpu-1": pytest.approx(0.005)}

    def test_a_version_that_is_wanted_before_it_is_profiled_serves_once_it_is(
        self, home: Path
    ) -> None:
        async def talk() -> list[dict[int, float]]:
            done = asyncio.Event()
            learnt: list[dict[int, float]] = []
            looks = iter([(), (), (1,), (), (2, 4, 8), (), ()])

            async def watch(token: str) -> Service:
                batches = next(looks, None)
                if batches is None:
                    done.set()
                    await asyncio.Event().wait()
                profile(home, version, *batches or ())
                return Service("a", {NAME: Line(NAME, 2, (1,))})

            def learn(newer: Knowledge) -> None:
                facts = {each.variant_id: each for each in newer.variant_facts(8)}
                latency_s = facts[version].batch_s.get("cpu-1", ())
                learnt.append({batch: latency_s[batch] for batch in (1, 8) if latency_s})

            follower = VersionFollower(
                read_knowledge(home, Settings()),
                Rereader(home, Settings()),
                watch,
                lambda _: None,
                learn,
            )
            task = asyncio.create_task(follower.follow_forever())
            await asyncio.wait_for(done.wait(), 20.0)
            task.cancel()
            return learnt

        version = add_version(home, batches=())
        first, whole = asyncio.run(talk())
        assert first[1] == pytest.approx(0.005)
        assert whole == {1: pytest.approx(0.005), 8: pytest.approx(0.04)}

    def test_it_is_read_again_after_the_store_failed_and_for_each_version_by_itself(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(version_follower, "_AGAIN_S", 0.0)
        other = "pixels/mean/medium"

        class FailsAtFirst(Rereader):
            has_failed = False

            def __call__(self) -> Knowledge:
                if not self.has_failed:
                    self.has_failed = True
                    raise StoreError("the database is locked")
                return super().__call__()

        async def talk() -> list[set[str]]:
            done = asyncio.Event()
            learnt: list[set[str]] = []
            # Two points of one, which is taken back; then one of the other, which is promoted.
            looks = iter([(NAME, 1, 2), (NAME,), (), (other, 1), (other,)])

            async def watch(token: str) -> Service:
                look = next(looks, None)
                if look is None:
                    done.set()
                    await asyncio.Event().wait()
                name, *batches = look or ("",)
                if name:
                    profile(home, f"{name}@2", *batches)
                return Service(name, {name: Line(name, 2, (1,))} if name else {})

            follower = VersionFollower(
                read_knowledge(home, Settings()),
                FailsAtFirst(home, Settings()),
                watch,
                lambda _: None,
                lambda newer: learnt.append(set(newer.servable().variant_ids)),
            )
            task = asyncio.create_task(follower.follow_forever())
            await asyncio.wait_for(done.wait(), 20.0)
            task.cancel()
            return learnt

        for name in ("small", "medium"):
            add_version(home, (), name)
        first, second = asyncio.run(talk())
        assert f"{NAME}@2" in first
        assert f"{other}@2" not in first
        assert f"{other}@2" in second

    def test_a_new_task_is_known_and_keeps_what_was_known(self, home: Path) -> None:
        async def talk() -> Knowledge:
            known = asyncio.get_running_loop().create_future()

            async def watch(token: str) -> Service:
                if token:
                    await asyncio.Event().wait()
                lines = {name: Line(name, 1) for name in (*others, "dots/mean/small")}
                return Service("a", lines | {NAME: Line(NAME, 1, retired=True)})

            follower = VersionFollower(
                knowledge, Rereader(home, Settings()), watch, lambda _: None, known.set_result
            )
            task = asyncio.create_task(follower.follow_forever())
            learnt: Knowledge = await asyncio.wait_for(known, 20.0)
            task.cancel()
            return learnt

        others = SERVED.keys() - {NAME}
        knowledge = read_knowledge(home, Settings())
        with opened(home) as registry:
            for task in ("dots", "lines"):
                add_task(registry, task)
            retire(registry, NAME, "ann", "old", undo=False)
        profile(home, "dots/mean/small@1", 1)
        learnt = asyncio.run(talk())
        assert set(learnt.catalog.tasks) == {"pixels", "dots"}  # lines is not in service
        assert learnt.catalog.versions.keys() == {
            *knowledge.catalog.versions, "dots/mean/small@1"
        }  # fmt: skip
        assert not learnt.servable().not_served


class TestControlLoop:
    def talk(self, home: Path, say: Callable[[ControlLoop], Awaitable[Any]]) -> Any:
        async def talk() -> Any:
            settled = ControlTimes(settle_s=0.0)
            return await say(ControlLoop(home, Settings(), lambda effect: None, times=settled))

        return asyncio.run(talk())

    def report(self, name: str, *held: str, **more: Any) -> MemberReport:
        instances = tuple(Instance(name, each, 1 << 20, 0.1, 0.0, 0) for each in held)
        return MemberReport(name, True, WorkerState(name, "cpu-1", 1 << 30, instances), **more)

    def test_a_version_on_trial_is_loaded_where_its_variant_is(self, home: Path) -> None:
        trial = try_version(home)
        held = tuple(f"{name}@1" for name in SERVED)

        async def say(loop: ControlLoop) -> Any:
            orders = await loop.exchange(self.report("a", *held))
            return orders, await loop.versions("")

        orders, service = self.talk(home, say)
        assert [(each.variant_id, each.reason) for each in orders.effects] == [
            (trial.variant_id, Reason.ON_TRIAL)
        ]
        assert service.trials == (trial,)
        assert orders.status["trials"][0]["variant"] == trial.variant_id

    def test_once_promoted_it_is_planned_for_and_what_was_taken_back_leaves(
        self, home: Path
    ) -> None:
        version = add_version(home)
        with opened(home) as registry:
            promote(registry.store, version, "ann", "better")

        async def say(loop: ControlLoop) -> Any:
            return await loop.exchange(self.report("a", f"{NAME}@1"))

        effects = self.talk(home, say).effects
        assert version in {each.variant_id for each in effects}
        assert f"{NAME}@1" not in {each.variant_id for each in effects}

        with opened(home) as registry:
            rollback(registry.store, NAME, "ann", "no")

        async def again(loop: ControlLoop) -> Any:
            held = (*(f"{name}@1" for name in SERVED), version)
            return await loop.exchange(self.report("a", *held))

        (unload,) = self.talk(home, again).effects
        assert (unload.variant_id, unload.reason) == (version, Reason.WITHDRAWN)

    def test_it_tells_of_a_new_task_as_of_any_other_and_forgets_what_was_retired(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        not_served: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        note_served = ControlLoop._on_service

        def note(loop: ControlLoop, service: Service) -> None:
            note_served(loop, service)
            not_served.put_nowait(tuple(loop._not_served.values()))

        async def say(loop: ControlLoop) -> tuple[str, ...]:
            await loop.exchange(self.report("a"))
            with opened(home) as registry:
                add_task(registry, "dots")
                await loop._versions.look()
                await loop._versions.look()
                while not (reasons := await asyncio.wait_for(not_served.get(), 20.0)):
                    pass
                retire(registry, "dots", "ann", "old", undo=False)
            await loop._versions.look()
            await loop._versions.look()
            while await asyncio.wait_for(not_served.get(), 20.0):
                pass
            return reasons

        monkeypatch.setattr(ControlLoop, "_on_service", note)
        (reason,) = self.talk(home, say)
        assert "dots has no profile on device class cpu-1" in reason

    def test_feedback_is_passed_on_to_who_answered(self, home: Path) -> None:
        told = Feedback("b", 3, (True,), None)

        async def say(loop: ControlLoop) -> Any:
            await loop.exchange(self.report("b"))
            await loop.exchange(self.report("a"), (told, told._replace(gateway_id="gone")))
            first = await loop.exchange(self.report("b"))
            return first.feedback, (await loop.exchange(self.report("b"))).feedback

        assert self.talk(home, say) == ((told,), ())

    def test_a_revision_of_the_settings_reaches_whoever_waits_and_plans_anew(
        self, home: Path
    ) -> None:
        async def say(loop: ControlLoop) -> Any:
            await loop.exchange(self.report("a"))
            before = loop._versions.latest.service
            change_settings(home, {"policies.eviction": "lru"}, "ann")
            await loop._versions.look()
            service = loop._versions.latest.service
            async with asyncio.timeout(10.0):  # it is told as the gateways are
                while loop.status()["revision"] != 1:
                    await asyncio.to_thread(int)
            return before, service, loop.status(), loop._control._planner

        before, service, status, planner = self.talk(home, say)
        assert (before.revision, before.changes) == (0, {})
        assert (service.revision, service.changes) == (1, {"policies.eviction": "lru"})
        assert status["revision"] == 1
        assert type(planner.eviction).__name__ == "LeastRecentlyUsed"

        async def again(loop: ControlLoop) -> Any:  # one that starts anew goes by it at once
            await loop.exchange(self.report("a"))
            return loop.status(), loop._control._planner

        status, planner = self.talk(home, again)
        assert status["revision"] == 1
        assert type(planner.eviction).__name__ == "LeastRecentlyUsed"
