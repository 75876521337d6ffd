"""The demo from beginning to end: zoo, profile, cluster, photos, burst, report."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from modelless.common.errors import EnvironmentUnfitError, ModellessError
from modelless.controller.cli.screen import PIPED_WIDTH, Steps, show_progress
from modelless.controller.config import LimitSettings
from modelless.controller.demo import pictures, prepare, summary, tables
from modelless.controller.demo.answers import ask_about_clothes, ask_about_photos
from modelless.controller.demo.burst import (
    BurstResult,
    LoadProcess,
    MixPart,
    clothes_mix,
    estimate_capacity,
    kind_spec,
    kinds_of,
    offered_per_s,
    photo_mix,
    plan_steps,
)
from modelless.controller.demo.cluster_process import (
    ClusterProcess,
    free_port,
    terminate_as_interrupt,
)
from modelless.controller.demo.load_spec import KindSpec, LoadSpec
from modelless.controller.demo.page import render_page
from modelless.controller.demo.profiles import read_profiles
from modelless.controller.demo.query_log import QueryLog
from modelless.controller.demo.report import Findings, document_of
from modelless.controller.demo.slos import cost_slos, photo_slos
from modelless.controller.live.cluster.cluster import read_state
from modelless.controller.usecases.client import Client
from modelless.controller.usecases.zoo import zoo_add
from modelless.profiler.measure.progress import ProgressEvent

PHOTOS, CLOTHES = "imagenet", "fashion-mnist"
DEVICE_CLASS = "cpu-1"
PROFILE_BUDGET_S = 55.0

_CLOTHES_IMAGES = 500
_CLOTHES_BATCH = 8
_LOADED_S = 60.0
_PLAIN_EVERY_S = 10.0


def run_demo(
    home: Path,
    *,
    keep: bool = False,
    report_dir: Path = Path("demo-report"),
    seconds: float = 120.0,
    port: int = 8080,
    console: Console | None = None,
) -> int:
    """Run the whole demo; 0 when all of it was done.

    Interrupted, by Ctrl-C or SIGTERM, it takes everything down and raises KeyboardInterrupt.

    Args:
        home: store, artifacts and run files; made if need be, used again if there.
        keep: leave the cluster up, and say how to ask it more.
        report_dir: where ``index.html`` and ``report.json`` go.
        seconds: length of the burst.
        port: where clients go; another one if it is taken.
        console: for tables and words; stdout if None. Progress goes to stderr.

    Raises:
        EnvironmentUnfitError: something is not installed, or modelless is up in ``home`` already.
        ModellessError: a stage failed; says which and why.
    """
    if console is None:
        width = None if sys.stdout.isatty() else PIPED_WIDTH
        console = Console(width=width, highlight=False, emoji=False)
    with terminate_as_interrupt():
        return _Demo(home.resolve(), report_dir, seconds, port, keep, console).run()


class _Demo:
    """One run: the stages share what they find."""

    def __init__(
        self, home: Path, report_dir: Path, seconds: float, port: int, keep: bool, console: Console
    ) -> None:
        self._home, self._report_dir, self._seconds = home, report_dir, seconds
        self._port, self._keep, self._console = port, keep, console
        self._stages: list[tuple[str, float]] = []
        self._made_at = datetime.now(UTC)
        self._findings: Findings | None = None

    def run(self) -> int:
        began_s = time.monotonic()
        self._check()
        with self._stage("the zoo"):
            self._add_zoo()
        with self._stage("the profile"):
            findings = self._findings = self._profile()
        port = free_port(self._port)
        if port != self._port:
            self._say(f"port {self._port} is taken: using {port}")
        cluster = ClusterProcess(self._home, port, keep=self._keep, on_stage=self._whisper)
        with cluster:
            with self._stage("up"):
                self._wait_up(cluster, findings)
            with self._stage("photos"):
                self._ask(cluster.url, findings)
            with self._stage("burst"):
                self._burst(cluster.url, findings)
        if not self._keep:
            self._stages.append(("down", cluster.stop_s))
            self._say(f"[dim]everything is down ({cluster.stop_s:.1f} s)[/]")
        findings.stages = [*self._stages, ("all of it", time.monotonic() - began_s)]
        page = self._write(findings)
        for line in summary.summary(findings, page):
            self._say(line)
        if self._keep:
            for line in summary.how_to_ask(findings.profiles.tasks[PHOTOS], cluster.url):
                self._console.print(line, markup=False, soft_wrap=True)
        return 0

    # -- stages -------------------------------------------------------------------------------

    def _check(self) -> None:
        """Fail now rather than minutes later."""
        pictures.check_extras()
        running = read_state(self._home)
        if running is not None:
            raise EnvironmentUnfitError(
                f"modelless is already up at {running.url} (process {running.pid}); "
                "'modelless down' takes it down"
            )
        try:
            self._report_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentUnfitError(
                f"report: {self._report_dir} cannot be made ({error.strerror})"
            ) from None
        if not os.access(self._report_dir, os.W_OK):
            raise EnvironmentUnfitError(f"report: {self._report_dir} cannot be written to")

    def _add_zoo(self) -> None:
        for name in (PHOTOS, CLOTHES):
            with show_progress() as progress:
                (added,) = zoo_add(name, home=self._home, on_progress=progress)
            how = "there already" if added.was_there else "added"
            self._say(f"{name}: {len(added.variants)} variants, {how}")

    def _profile(self) -> Findings:
        with Steps("profile") as steps:
            result = prepare.profile_all(
                self._home,
                (PHOTOS, CLOTHES),
                DEVICE_CLASS,
                PROFILE_BUDGET_S,
                partial(_show_progress, steps),
            )
        profiles = read_profiles(self._home, (PHOTOS, CLOTHES), DEVICE_CLASS)
        findings = Findings(self._made_at, metadata.version("modelless"), profiles)
        self._say(
            f"{len(result.measured)} points measured now, {len(result.skipped)} known or left out"
        )
        doubtful = len(profiles.untrusted)
        if doubtful:
            words = (
                f"The machine was noisy: the profiles of {doubtful} variants are not to be "
                "trusted, and predictions may be off. 'modelless profile' measures them again."
            )
            self._say(f"[yellow]{words}[/]")
            findings.notes.append(words)
        for placement, message in result.failed.items():
            self._say(f"[red]{escape(placement.variant_id)} failed: {escape(message)}[/]")
        count = len(profiles.by_task[PHOTOS])
        self._say(f"worth having, of the {count} variants of {PHOTOS}:")
        self._console.print(tables.frontier_table(profiles.by_task[PHOTOS]))
        return findings

    def _wait_up(self, cluster: ClusterProcess, findings: Findings) -> None:
        cluster.wait_ready()
        task = findings.profiles.tasks[PHOTOS]
        photos = findings.photos = pictures.load_photos()
        with Client(cluster.url) as client:
            ask_about_photos(client, task, photos[:1], photo_slos_of(findings)[:1], {})
            findings.first_answer_s = cluster.age_s
            self._say(f"first answer {findings.first_answer_s:.1f} s after the start")
            wanted = sum(map(len, findings.profiles.by_task.values()))
            held = self._wait_loaded(client, wanted)
        self._say(f"{held} of {wanted} variants loaded in every gateway, at {cluster.url}")

    def _wait_loaded(self, client: Client, wanted: int) -> int:
        """Wait until every gateway holds all that it will hold; how many that is."""
        end_s = time.monotonic() + _LOADED_S
        least, settled_s = 0, time.monotonic()
        with Steps("loading") as steps:
            while time.monotonic() < end_s:
                members = client.get("/modelless/status").get("members", [])
                now = min((len(member["loaded"]) for member in members), default=0)
                if now != least or any(member["loading"] for member in members):
                    settled_s = time.monotonic()
                least = now
                steps.at(min(least, wanted), wanted)
                if least >= wanted or time.monotonic() - settled_s > 5.0:
                    break
                time.sleep(0.25)
        return least

    def _ask(self, url: str, findings: Findings) -> None:
        profiles = findings.profiles
        slos = photo_slos_of(findings)
        resolutions = {
            member.variant.id: member.variant.resolution_px for member in profiles.by_task[PHOTOS]
        }
        clothes_slos = cost_slos(profiles.by_task[CLOTHES], profiles.device_class, _CLOTHES_BATCH)
        images, labels = _clothes(_CLOTHES_IMAGES)
        total = len(findings.photos) * len(slos)
        with Client(url) as client:
            with Steps("photos") as steps:
                done = iter(range(1, total + 1))
                answers = ask_about_photos(
                    client,
                    profiles.tasks[PHOTOS],
                    findings.photos,
                    slos,
                    resolutions,
                    lambda answer: steps.at(next(done), total, answer.photo),
                )
            findings.photo_answers = answers
            self._console.print(tables.photo_table(answers))
            for name, words in tables.refusals(answers).items():
                self._say(f"[red]{escape(name)}[/]: {escape(words)}")
            findings.clothes = [
                ask_about_clothes(
                    client, profiles.tasks[CLOTHES], images, labels, slo, _CLOTHES_BATCH
                )
                for slo in clothes_slos
            ]
        self._console.print(tables.clothes_table(findings.clothes))
        for line in summary.photo_summary(answers):
            self._say(line)

    def _burst(self, url: str, findings: Findings) -> None:
        profiles = findings.profiles
        mix = photo_mix(profiles.by_task[PHOTOS], profiles.device_class)
        mix += clothes_mix(CLOTHES, mix)
        with Client(url, timeout_s=2.0) as client, tempfile.TemporaryDirectory() as folder:
            status = _status(client) or {}
            gateways = sum(m["role"] == "gateway" for m in status.get("members", [])) or 1
            capacity = estimate_capacity(mix, profiles.by_task, profiles.device_class, gateways)
            kinds = self._kinds(findings, mix, Path(folder))
            steps = plan_steps(capacity.per_s, self._seconds)
            spec = LoadSpec(url=url, kinds=kinds, steps=steps)
            self._say(
                f"about {capacity.per_s:.0f} queries/s of this mix fit at full accuracy; sending "
                + ", ".join(f"{step.per_s:.0f}" for step in steps)
                + f" a second, {self._seconds / len(steps):.0f} s each"
            )
            query_log = QueryLog(kinds_of(spec))
            with LoadProcess(spec, Path(folder)) as load:
                self._watch(load, query_log, spec, client)
                cpu_s = load.cpu_s
            status = _status(client) or {}
        memory_bytes = tables.queue_and_memory(status)[1]
        findings.burst_kinds = kinds
        findings.burst = BurstResult(query_log, steps, capacity, self._seconds, cpu_s, memory_bytes)
        self._console.print(tables.kinds_table(query_log))

    def _watch(
        self, load: LoadProcess, query_log: QueryLog, spec: LoadSpec, client: Client
    ) -> None:
        """Show the burst as it goes: a table on a terminal, now and then a line elsewhere."""
        width = None if sys.stderr.isatty() else PIPED_WIDTH
        screen = Console(stderr=True, width=width, highlight=False, emoji=False)
        live = Live(console=screen, auto_refresh=False, transient=True)
        said_s = 0.0
        with live if screen.is_terminal else _nothing():
            for second, rows in enumerate(load.batches(), start=1):
                query_log.add(rows)
                at_s = min(float(second), self._seconds)
                if screen.is_terminal:
                    offered = offered_per_s(spec.steps, at_s - 0.5)
                    live.update(
                        tables.live_table(
                            query_log, at_s, self._seconds, offered, PHOTOS, _status(client)
                        ),
                        refresh=True,
                    )
                elif second - said_s >= _PLAIN_EVERY_S and second <= self._seconds:
                    said_s = second
                    screen.print(tables.live_line(query_log, at_s, self._seconds, _status(client)))

    def _kinds(self, findings: Findings, mix: list[MixPart], folder: Path) -> list[KindSpec]:
        """The mix with its pictures, which are written to ``folder``."""
        tasks = findings.profiles.tasks
        photos = findings.photos
        clothes, truth = _clothes(64, seed=1)
        np.save(folder / f"{PHOTOS}.npy", np.stack([photo.pixels for photo in photos]))
        np.save(folder / f"{CLOTHES}.npy", clothes)
        labels = {
            PHOTOS: [pictures.acceptable_indices(photo, tasks[PHOTOS].labels) for photo in photos],
            CLOTHES: [[int(label)] for label in truth],
        }
        return [
            kind_spec(
                part,
                images=folder / f"{part.task}.npy",
                labels=labels[part.task],
                default_deadline_ms=LimitSettings().default_latency_ms,
                input_name=tasks[part.task].inputs[0].name,
                output_name=tasks[part.task].outputs[0].name,
            )
            for part in mix
        ]

    def _write(self, findings: Findings) -> Path:
        document = document_of(findings)
        thumbnails = {photo.name: pictures.thumbnail(photo) for photo in findings.photos}
        page = self._report_dir / "index.html"
        page.write_text(render_page(document, thumbnails), encoding="utf-8")
        text = json.dumps(document, indent=1, allow_nan=False)
        (self._report_dir / "report.json").write_text(text + "\n", encoding="utf-8")
        return page

    # -- words --------------------------------------------------------------------------------

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._console.print(f"\n[bold]{len(self._stages) + 1}. {name}[/]")
        began_s = time.monotonic()
        yield
        self._stages.append((name, time.monotonic() - began_s))
        self._say(f"[dim]{name}: {self._stages[-1][1]:.1f} s[/]")

    def _say(self, words: str) -> None:
        self._console.print(f"   {words}")

    def _whisper(self, words: str) -> None:
        self._say(f"[dim]{escape(words)}[/]")


def photo_slos_of(findings: Findings) -> Any:
    """See ``slos.photo_slos``."""
    profiles = findings.profiles
    return photo_slos(profiles.by_task[PHOTOS], profiles.device_class)


def _clothes(count: int, seed: int = 0) -> tuple[Any, Any]:
    """``count`` labelled images of the test split, the same for a seed."""
    from modelless.variants.zoo.fashion_mnist import FashionMnist

    images, labels = FashionMnist().test_split()
    chosen = np.random.default_rng(seed).choice(len(images), count, replace=False)
    return images[chosen], labels[chosen]


def _show_progress(steps: Steps, event: ProgressEvent) -> None:
    now = ""
    if event.placement is not None and event.batch is not None:
        now = f"{event.placement.variant_id.rpartition('@')[0]}, batch {event.batch}"
    steps.at(event.done, event.total, now, event.eta_s)


def _status(client: Client) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.get("/modelless/status")
    except ModellessError:  # a table without a queue is better than no table
        return None
    return found


@contextmanager
def _nothing() -> Iterator[None]:
    yield
