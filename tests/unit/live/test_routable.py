"""Which workers routers can reach."""

from __future__ import annotations

from modelless.controller.live.front.remote_workers import RoutableWorkers


def test_routers_tell_when_workers_come_and_go() -> None:
    routable, told = RoutableWorkers(), []
    routable.listen(lambda: told.append(routable.app_of("b")))
    routable.put("app", ["a"])
    routable.put("app", ["a"])
    routable.put("app", ["a", "b"])
    routable.put("other", ["c"])
    routable.put("app", ["a"])
    assert told == [None, "app", "app", None]
    assert routable.app_of("c") == "other"
