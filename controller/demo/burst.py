"""The burst: what is sent, how fast, and the parent's side of the process that sends it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.demo.load_spec import LoadSpec, StepSpec
from modelless.controller.demo.profiles import frontier
from modelless.controller.demo.query_log import QueryLog, Row
from modelless.controller.demo.slos import OVERHEAD_S, NamedSlo, best_within, floor_of, round_up
from modelless.profiler.report.profiles import Profile
from modelless.variants.vocabulary import SLO, DeviceClass

STEPS = (0.3, 0.8, 1.6, 0.5)
"""The offered load by quarter of the burst, as shares of the estimated capacity."""

SERVING_SHARE = 0.8
"""Of the cores; the proxy, Ray's daemons and the demo's client take the rest."""

MOST_PER_S = 800.0
"""No faster than this, however many cores there are: one client must keep up."""


@dataclass(frozen=True, slots=True)
class MixPart:
    """One kind of queries in the mix.

    Attributes:
        weight: its share of all queries, 0 to 1.
    """

    named: NamedSlo
    task: str
    weight: float


@dataclass(frozen=True, slots=True)
class BurstResult:
    """The results of the burst.

    Attributes:
        mean_service_s: device time and overhead of a query on an idle system, as estimated.
        client_cpu_s: processor time of the client, seconds.
        memory_bytes: of all gateways and workers, resident, at the end; 0 if unknown.
    """

    spec: LoadSpec
    query_log: QueryLog
    gateways: int
    mean_service_s: float
    client_cpu_s: float
    memory_bytes: int


def burst_mix(
    photos: Sequence[Profile], device_class: DeviceClass, clothes_task: str
) -> list[MixPart]:
    """The burst's queries: for people who wait, for care, for haste and for thrift; and clothes.

    Args:
        device_class: what they run on, for its price.
        clothes_task: asked about under the tightest deadline of the photos.
    """
    members = frontier(photos)
    best, middle, second = members[-1], members[len(members) // 2], members[-2:][0]
    cap_usd = round_up(device_class.cost_usd(1.2 * middle.points[0].p50_s), 3)
    floor = floor_of(second.variant.accuracy.percent)
    quick = SLO(_deadline_ms(best, 2.5))
    task = best.variant.task
    parts = (
        ("interactive", task, 0.35, SLO(_deadline_ms(best, 3.5))),
        ("accurate", task, 0.15, SLO(_deadline_ms(best, 4.0), min_accuracy=floor)),
        ("quick", task, 0.15, quick),
        ("thrifty", task, 0.15, SLO(_deadline_ms(best, 3.5), max_cost_usd=cap_usd)),
        ("clothes", clothes_task, 0.20, quick),
    )
    return [MixPart(NamedSlo(name, slo), task, weight) for name, task, weight, slo in parts]


def _deadline_ms(best: Profile, times: float) -> float:
    """So many times what the most accurate variant takes, a p99 that noise drew out left aside."""
    slow_s = min(best.points[0].p99_s, 1.5 * best.points[0].p50_s) + OVERHEAD_S
    return round_up(times * slow_s * 1e3)


def estimate_service_s(
    mix: Sequence[MixPart], by_task: Mapping[str, Sequence[Profile]], device_class: DeviceClass
) -> float:
    """A query's device time and overhead, on average, if each gets what an idle system gives it.

    Args:
        mix: what is asked for; the weights add up to 1.
    """
    mean_s = 0.0
    for part in mix:
        variants = by_task[part.task]
        fastest = frontier(variants)[0]
        chosen = best_within(variants, part.named.slo, device_class.cost_usd(1.0)) or fastest
        mean_s += part.weight * (chosen.points[0].mean_s + OVERHEAD_S)
    return mean_s


def capacity_per_s(gateways: int, mean_service_s: float) -> float:
    """Queries a second that the gateways, one a core, serve without stepping down."""
    return SERVING_SHARE * gateways / mean_service_s


def plan_steps(per_s: float, seconds: float) -> list[StepSpec]:
    """The offered load: ``STEPS`` of a capacity, each for an equal part of ``seconds``."""
    scale = min(1.0, MOST_PER_S / (per_s * max(STEPS)))
    return [StepSpec(seconds=seconds / len(STEPS), per_s=per_s * share * scale) for share in STEPS]


class LoadProcess:
    """The process that sends the load. Use as a context manager: leaving it ends the process.

    Args:
        folder: where the spec is written; must exist.

    Attributes:
        cpu_s: processor time the client has taken so far, seconds, its start left out.
    """

    def __init__(self, spec: LoadSpec, folder: Path) -> None:
        path = folder / "load.json"
        path.write_text(spec.model_dump_json(), encoding="utf-8")
        self._command = [sys.executable, "-P", "-m", "modelless.controller.demo.load", str(path)]
        self._complaints = folder / "load.err"
        self.cpu_s = 0.0

    def __enter__(self) -> LoadProcess:
        with self._complaints.open("w") as complaints:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                start_new_session=True,  # Ctrl-C is for the demo, which ends this one in its turn
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it has nothing to lose
        self._process.communicate()

    def batches(self) -> Iterator[list[Row]]:
        """Report the queries that have ended, second by second, until all have.

        Raises:
            EnvironmentUnfitError: the process died.
        """
        assert self._process.stdout is not None  # noqa: S101  (it is a pipe)
        for line in self._process.stdout:
            said = json.loads(line)
            self.cpu_s = float(said["cpu_s"])
            yield [Row(*row) for row in said["rows"]]
            if said["is_last"]:
                return
        words = self._complaints.read_text(encoding="utf-8", errors="replace").strip()
        last = (words.splitlines() or ["without a word"])[-1]
        raise EnvironmentUnfitError(f"the client has died: {last}")
