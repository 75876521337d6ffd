"""Ongoing requests: keeps the open queries per worker near a target, after delays.

Ray Serve's own autoscaling rule, with its names and defaults (Ray 2.x, "Advanced Ray Serve
Autoscaling": docs.ray.io/en/latest/serve/advanced-guides/advanced-autoscaling.html).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite

from modelless.common.errors import InvalidInputError
from modelless.policies.reasons import Reason
from modelless.policies.scaling.fixed import Fixed
from modelless.policies.seams import ScalingPolicy
from modelless.policies.views import ClusterView, Targets

_MOST_SAMPLES = 1024
_MOST_WORKERS = 1_000_000


class OngoingRequests(ScalingPolicy):
    """Workers: the mean number of open queries over the target. Instances: as ``fixed``.

    Each device class keeps its share of the fleet, because a worker of any class may answer any
    query, and at least one worker.

    Args:
        target_ongoing_requests: queries waiting or running per worker.
        upscale_delay_s: seconds without a break for which more workers must be wanted before more
            are asked for.
        downscale_delay_s: the same for fewer.
        upscaling_factor, downscaling_factor: the share of the way to the new number to go at once.
        look_back_period_s: seconds over which open queries are averaged.
        device_classes: classes to scale; null: all that have workers.
        keep_dominated: as in ``fixed``.
    """

    def __init__(
        self,
        target_ongoing_requests: float = 2.0,
        upscale_delay_s: float = 30.0,
        downscale_delay_s: float = 600.0,
        upscaling_factor: float = 1.0,
        downscaling_factor: float = 1.0,
        look_back_period_s: float = 30.0,
        device_classes: Sequence[str] | None = None,
        keep_dominated: bool = True,
    ) -> None:
        for name, value in (
            ("target_ongoing_requests", target_ongoing_requests),
            ("upscaling_factor", upscaling_factor),
            ("downscaling_factor", downscaling_factor),
            ("look_back_period_s", look_back_period_s),
        ):
            if not 0.0 < value < inf:
                raise InvalidInputError.of(name, value, "a number, more than 0")
        for name, value in (
            ("upscale_delay_s", upscale_delay_s),
            ("downscale_delay_s", downscale_delay_s),
        ):
            if not 0.0 <= value < inf:
                raise InvalidInputError.of(name, value, "seconds, 0 or more")
        self.target_ongoing_requests = target_ongoing_requests
        self.upscale_delay_s = upscale_delay_s
        self.downscale_delay_s = downscale_delay_s
        self.upscaling_factor = upscaling_factor
        self.downscaling_factor = downscaling_factor
        self.look_back_period_s = look_back_period_s
        self.device_classes = None if device_classes is None else tuple(device_classes)
        self._instances = Fixed(keep_dominated=keep_dominated)
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MOST_SAMPLES)  # time, queries open
        self._pools: dict[str, _Pool] = {}

    def targets(self, view: ClusterView, forecast_per_s: Mapping[str, float]) -> Targets:
        ongoing = self._mean_ongoing(view)
        present = Counter(worker.device_class for worker in view.workers)
        load = ongoing / (present.total() * self.target_ongoing_requests) if present else 0.0
        workers = {}
        for name in sorted(self.device_classes or present):
            if name not in view.device_classes:
                continue
            pool = self._pools.setdefault(name, _Pool(max(present[name], 1)))
            self._decide(pool, self._desired(present[name], load), view.now_s)
            workers[name] = pool.target
        instances = self._instances.targets(view, forecast_per_s).instances
        return Targets(instances, workers, Reason.DEMAND)

    def _mean_ongoing(self, view: ClusterView) -> float:
        """Returns the mean number of open queries over the recent views."""
        if self._samples and view.now_s < self._samples[-1][0]:
            self._samples.clear()  # the clock jumped back
        self._samples.append((view.now_s, sum(view.open_queries.values())))
        while self._samples[0][0] < view.now_s - self.look_back_period_s:
            self._samples.popleft()
        return sum(count for _, count in self._samples) / len(self._samples)

    def _desired(self, present: int, load: float) -> int:
        """Returns the wanted workers of a class with ``present`` workers.

        Args:
            present: workers of the class.
            load: open queries a worker of the fleet, over the target.
        """
        if present == 0:
            return 1
        change = present * load - present
        factor = self.upscaling_factor if change > 0.0 else self.downscaling_factor
        desired = ceil(round(present + factor * change, 6))
        if desired == present and ceil(present * load) < present:
            desired -= 1  # a small factor must not prevent scaling down for ever
        return min(max(desired, 1), _MOST_WORKERS)

    def _decide(self, pool: _Pool, desired: int, now_s: float) -> None:
        """Change the pool's target if the same direction has been wanted for long enough."""
        direction = (desired > pool.target) - (desired < pool.target)
        if direction == 0 or direction != pool.direction or not pool.since_s <= now_s:
            pool.direction, pool.since_s = direction, now_s
        delay_s = self.upscale_delay_s if direction > 0 else self.downscale_delay_s
        if direction != 0 and isfinite(now_s) and now_s - pool.since_s >= delay_s - 1e-6:
            pool.target, pool.direction = desired, 0


@dataclass(slots=True)
class _Pool:
    """The target of a device class, and since when more or fewer workers are wanted."""

    target: int
    direction: int = 0
    since_s: float = 0.0
