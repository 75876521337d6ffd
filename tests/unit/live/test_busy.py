"""How busy a device was: long batches count while they run, and nothing counts twice."""

from __future__ import annotations

from modelless.controller.live.worker.device_threads import BusyMeter


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_long_batch_counts_while_it_runs() -> None:
    clock = Clock()
    meter = BusyMeter(clock)
    clock.now_s += 0.5
    meter.start()
    shares = []
    for _ in range(3):
        clock.now_s += 1.0
        shares.append(meter.take_share())
    clock.now_s += 0.25
    meter.stop()
    clock.now_s += 0.75
    shares.append(meter.take_share())
    assert shares == [1.0 / 1.5, 1.0, 1.0, 0.25]


def test_short_ones_add_up() -> None:
    clock = Clock()
    meter = BusyMeter(clock)
    for _ in range(4):
        meter.start()
        clock.now_s += 0.1
        meter.stop()
        clock.now_s += 0.1
    assert abs(meter.take_share() - 0.5) < 1e-9
    assert meter.take_share() == 0.0  # no time has passed
    clock.now_s += 1.0
    assert meter.take_share() == 0.0
