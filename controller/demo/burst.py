"""The burst: what is sent, how fast, and the parent's side of the process that sends it."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from modelless.common.errors import EnvironmentUnfitError
from modelless.controller.demo.load import GRACE_S
from modelless.controller.demo.load_spec import KindSpec, LoadSpec, StepSpec
from modelless.controller.demo.profiles import Profiled, frontier
from modelless.controller.demo.query_log import Kind, QueryLog, Row
from modelless.controller.demo.slos import (
    OVERHEAD_S,
    NamedSlo,
    best_within,
    floor_of,
    round_up,
)
from modelless.controller.usecases.client import parameters_of
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
        named: its limits.
        task: what is asked for.
        weight: its share of all queries, 0 to 1.
    """

    named: NamedSlo
    task: str
    weight: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rate that the cluster can serve without stepping down to quicker variants.

    Attributes:
        per_s: queries of the mix a second.
        mean_service_s: device time and overhead of a query, on average.
        gateways: devices that share the work.
    """

    per_s: float
    mean_service_s: float
    gateways: int


def photo_mix(variants: Sequence[Profiled], device_class: DeviceClass) -> list[MixPart]:
    """Limits of the burst's photo queries: for people who wait, for care, for haste and for thrift.

    Args:
        variants: of one task.
        device_class: what they run on, for its price.
    """
    members = frontier(variants)
    best, middle, second = members[-1], members[len(members) // 2], members[-2:][0]
    task = best.variant.task
    cap_usd = round_up(device_class.cost_usd(1.2 * middle.one.p50_s), 3)
    floor = floor_of(second.accuracy_percent)
    parts = (
        ("interactive", 0.35, SLO(_deadline_ms(best, 3.5))),
        ("accurate", 0.15, SLO(_deadline_ms(best, 4.0), min_accuracy=floor)),
        ("quick", 0.15, SLO(_deadline_ms(best, 2.5))),
        ("thrifty", 0.15, SLO(_deadline_ms(best, 3.5), max_cost_usd=cap_usd)),
    )
    return [MixPart(NamedSlo(name, slo), task, weight) for name, weight, slo in parts]


def _deadline_ms(best: Profiled, times: float) -> float:
    """So many times what the most accurate variant takes, a p99 that noise drew out left aside."""
    slow_s = min(best.p99_s, 1.5 * best.one.p50_s) + OVERHEAD_S
    return round_up(times * slow_s * 1e3)


def clothes_mix(task: str, photo_parts: Sequence[MixPart]) -> list[MixPart]:
    """The burst's queries about clothes: a deadline like the tightest of the photos'."""
    deadlines_ms = [p.named.slo.latency_ms for p in photo_parts if p.named.slo.latency_ms]
    deadline_ms = min(deadlines_ms, default=50.0)
    return [MixPart(NamedSlo("clothes", SLO(latency_ms=deadline_ms)), task, 0.20)]


def estimate_capacity(
    mix: Sequence[MixPart],
    by_task: Mapping[str, Sequence[Profiled]],
    device_class: DeviceClass,
    gateways: int,
) -> Capacity:
    """Queries a second that fit if each gets what it would get from an idle system.

    Args:
        mix: what is asked for.
        by_task: the variants of each task.
        device_class: of the gateways' devices.
        gateways: how many share the work; one a core.
    """
    price_usd_per_s = device_class.cost_usd(1.0)
    service_s = weight = 0.0
    for part in mix:
        variants = by_task[part.task]
        chosen = best_within(variants, part.named.slo, price_usd_per_s) or frontier(variants)[0]
        service_s += part.weight * (chosen.one.mean_s + OVERHEAD_S)
        weight += part.weight
    mean_s = service_s / weight
    return Capacity(SERVING_SHARE * gateways / mean_s, mean_s, gateways)


def plan_steps(capacity_per_s: float, seconds: float) -> list[StepSpec]:
    """The offered load: ``STEPS`` of the capacity, each for an equal part of ``seconds``."""
    scale = min(1.0, MOST_PER_S / (capacity_per_s * max(STEPS)))
    return [
        StepSpec(seconds=seconds / len(STEPS), per_s=capacity_per_s * share * scale)
        for share in STEPS
    ]


def offered_per_s(steps: Sequence[StepSpec], at_s: float) -> float:
    """The mean rate that is due ``at_s`` seconds after the beginning; 0 outside."""
    start_s = 0.0
    for step in steps:
        if start_s <= at_s < start_s + step.seconds:
            return step.per_s
        start_s += step.seconds
    return 0.0


def kinds_of(spec: LoadSpec) -> list[Kind]:
    """The kinds of the load, as the log of queries takes them."""
    return [Kind(kind.name, kind.task, kind.deadline_ms) for kind in spec.kinds]


def kind_spec(
    part: MixPart,
    *,
    images: Path,
    labels: list[list[int]],
    default_deadline_ms: float,
    input_name: str,
    output_name: str,
) -> KindSpec:
    """A part of the mix for the process that sends it."""
    return KindSpec(
        name=part.named.name,
        task=part.task,
        limits=parameters_of(part.named.slo),
        weight=part.weight,
        deadline_ms=part.named.slo.latency_ms or default_deadline_ms,
        images=images,
        labels=labels,
        input_name=input_name,
        output_name=output_name,
    )


class LoadProcess:
    """The process that sends the load. Use as a context manager: leaving it ends the process.

    Args:
        spec: what to send.
        folder: where the spec is written; must exist.
    """

    def __init__(self, spec: LoadSpec, folder: Path) -> None:
        self._spec = spec
        self._path = folder / "load.json"
        self._complaints = folder / "load.err"
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self.cpu_s = 0.0
        """Processor time the client has taken so far, seconds, its start left out."""

    def __enter__(self) -> LoadProcess:
        self._path.write_text(self._spec.model_dump_json(), encoding="utf-8")
        with self._complaints.open("w") as complaints:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "modelless.controller.demo.load", str(self._path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                start_new_session=True,  # Ctrl-C is for the demo, which ends this one in its turn
            )
        threading.Thread(target=self._read, name="demo-load-reader", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def batches(self) -> Iterator[list[Row]]:
        """Report the queries that have ended, second by second, until all have.

        Raises:
            EnvironmentUnfitError: the process died or fell silent.
        """
        length_s = sum(step.seconds for step in self._spec.steps)
        is_last = False
        while not is_last:
            try:
                line = self._lines.get(timeout=length_s + 2 * GRACE_S)
            except queue.Empty:
                line = None
            if line is None:
                raise EnvironmentUnfitError(f"the client has died: {self._complaint()}")
            said: dict[str, Any] = json.loads(line)
            self.cpu_s = float(said["cpu_s"])
            is_last = bool(said["is_last"])
            yield [Row(*row) for row in said["rows"]]

    def _read(self) -> None:
        process = self._process
        if process is not None and process.stdout is not None:
            with process.stdout as lines:
                for line in lines:
                    self._lines.put(line)
        self._lines.put(None)

    def _complaint(self) -> str:
        text = self._complaints.read_text(encoding="utf-8", errors="replace")
        return (text.strip().splitlines() or ["without a word"])[-1]


@dataclass(frozen=True, slots=True)
class BurstResult:
    """The results of the burst.

    Attributes:
        query_log: every query.
        steps: what was offered.
        capacity: as estimated from the profile.
        seconds: its length.
        client_cpu_s: processor time of the client, seconds.
        memory_bytes: of all gateways and workers, resident, at the end; 0 if unknown.
    """

    query_log: QueryLog
    steps: Sequence[StepSpec]
    capacity: Capacity
    seconds: float
    client_cpu_s: float
    memory_bytes: int
