"""The demo from beginning to end: zoo, profile, cluster, photos, burst, report."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from modelless.common.errors import EnvironmentUnfitError, ModellessError
from modelless.controller.cli.screen import PIPED_WIDTH, Steps, show_progress
from modelless.controller.demo import pictures, summary, tables
from modelless.controller.demo.answers import (
    ClothesAnswer,
    Photo,
    PhotoFindings,
    ask_about_clothes,
    ask_about_photos,
)
from modelless.controller.demo.burst import (
    BurstResult,
    LoadProcess,
    MixPart,
    burst_mix,
    capacity_per_s,
    estimate_service_s,
    plan_steps,
)
from modelless.controller.demo.cluster_process import (
    ClusterProcess,
    free_port,
    terminate_as_interrupt,
)
from modelless.controller.demo.load_spec import KindSpec, LoadSpec
from modelless.controller.demo.page import render_page
from modelless.controller.demo.profiles import Profiles, is_trusted, measure_profiles
from modelless.controller.demo.query_log import QueryLog
from modelless.controller.demo.report import Findings, document_of
from modelless.controller.demo.slos import NamedSlo, cost_slos, photo_slos
from modelless.controller.live.cluster.cluster import read_state
from modelless.controller.usecases.client import Client, parameters_of
from modelless.controller.usecases.zoo import zoo_add

PHOTOS, CLOTHES = "imagenet", "fashion-mnist"
DEVICE_CLASS = "cpu-1"
PROFILE_BUDGET_S = 55.0

_CLOTHES_IMAGES = 500
_CLOTHES_BATCH = 8
_LOADED_S = 60.0
_PLAIN_EVERY_S = 10


def run_demo(
    home: Path,
    *,
    keep: bool = False,
    report_dir: Path = Path("demo-report"),
    seconds: float = 120.0,
    port: int = 8080,
) -> None:
    """Run the whole demo: results on stdout, progress on stderr.

    Interrupted, by Ctrl-C or SIGTERM, it takes everything down and raises KeyboardInterrupt.

    Args:
        home: store, artifacts and run files; made if need be, used again if there.
        keep: leave the cluster up, and say how to ask it more.
        port: where clients go; another one if it is taken.

    Raises:
        EnvironmentUnfitError: something is not installed, or modelless is up in ``home`` already.
        ModellessError: a stage failed; says which and why.
    """
    with terminate_as_interrupt():
        _Demo(home.resolve(), report_dir, seconds).run(port, keep=keep)


class _Demo:
    def __init__(self, home: Path, report_dir: Path, seconds: float) -> None:
        self._home, self._report_dir, self._seconds = home, report_dir, seconds
        self._console = _console(sys.stdout)
        self._stages: list[tuple[str, float]] = []
        self._notes: list[str] = []

    def run(self, port: int, *, keep: bool) -> None:
        made_at, began_s = datetime.now(UTC), time.monotonic()
        self._check()
        with self._stage("the zoo"):
            self._add_zoo()
        with self._stage("the profile"):
            profiles = self._profile()
        free = free_port(port)
        if free != port:
            self._say(f"port {port} is taken: using {free}")
        slos = photo_slos(profiles.by_task[PHOTOS], profiles.device_class)
        with ClusterProcess(self._home, free, keep=keep, on_stage=self._whisper) as cluster:
            with self._stage("up"):
                cluster.wait_ready()
                shown = pictures.load_photos()
                first_answer_s = self._first_answer(cluster, profiles, shown, slos)
            with self._stage("photos"), Client(cluster.url) as client:
                photos = self._ask_about_photos(client, profiles, shown, slos)
                clothes = self._ask_about_clothes(client, profiles)
                for line in summary.photo_summary(photos.document()):
                    self._say(line)
            with self._stage("burst"):
                burst = self._burst(cluster.url, profiles, shown)
        if not keep:
            self._stages.append(("down", cluster.stop_s))
            self._say(f"[dim]everything is down ({cluster.stop_s:.1f} s)[/]")
        self._stages.append(("all of it", time.monotonic() - began_s))
        stages, notes = self._stages, self._notes
        document = document_of(
            Findings(made_at, profiles, stages, first_answer_s, photos, clothes, burst, notes)
        )
        page = self._write(document, shown)
        for line in summary.summary(document, page):
            self._say(line)
        if keep:
            for line in summary.how_to_ask(profiles.tasks[PHOTOS], cluster.url):
                self._console.print(line, markup=False, soft_wrap=True)

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

    def _profile(self) -> Profiles:
        profiles, result = measure_profiles(
            self._home, (PHOTOS, CLOTHES), DEVICE_CLASS, PROFILE_BUDGET_S
        )
        self._say(
            f"{len(result.measured)} points measured now, {len(result.skipped)} known or left out"
        )
        doubtful = sum(not is_trusted(p) for each in profiles.by_task.values() for p in each)
        if doubtful:
            words = (
                f"The machine was noisy: the profiles of {doubtful} variants are not to be "
                "trusted, and predictions may be off. 'modelless profile' measures them again."
            )
            self._say(f"[yellow]{words}[/]")
            self._notes.append(words)
        self._say(f"worth having, of the {len(profiles.by_task[PHOTOS])} variants of {PHOTOS}:")
        self._console.print(tables.frontier_table(profiles.by_task[PHOTOS]))
        return profiles

    def _first_answer(
        self,
        cluster: ClusterProcess,
        profiles: Profiles,
        photos: Sequence[Photo],
        slos: Sequence[NamedSlo],
    ) -> float:
        """Ask once, then wait until all is loaded; seconds from the start to the answer."""
        with Client(cluster.url) as client:
            ask_about_photos(client, profiles.tasks[PHOTOS], photos[:1], slos[:1], {})
            first_answer_s = cluster.age_s
            self._say(f"first answer {first_answer_s:.1f} s after the start")
            wanted = sum(map(len, profiles.by_task.values()))
            held = self._wait_loaded(client, wanted)
        self._say(f"{held} of {wanted} variants loaded in every gateway, at {cluster.url}")
        return first_answer_s

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

    def _ask_about_photos(
        self,
        client: Client,
        profiles: Profiles,
        photos: Sequence[Photo],
        slos: Sequence[NamedSlo],
    ) -> PhotoFindings:
        resolutions = {p.variant.id: p.variant.resolution_px for p in profiles.by_task[PHOTOS]}
        total = len(photos) * len(slos)
        with Steps("photos") as steps:
            done = iter(range(1, total + 1))
            answers = ask_about_photos(
                client,
                profiles.tasks[PHOTOS],
                photos,
                slos,
                resolutions,
                lambda answer: steps.at(next(done), total, answer.photo),
            )
        self._console.print(tables.photo_table(answers))
        for name, words in tables.refusals(answers).items():
            self._say(f"[red]{escape(name)}[/]: {escape(words)}")
        return PhotoFindings(photos, slos, answers)

    def _ask_about_clothes(self, client: Client, profiles: Profiles) -> list[ClothesAnswer]:
        images, labels = _clothes(_CLOTHES_IMAGES)
        answers = [
            ask_about_clothes(client, profiles.tasks[CLOTHES], images, labels, slo, _CLOTHES_BATCH)
            for slo in cost_slos(profiles.by_task[CLOTHES], profiles.device_class, _CLOTHES_BATCH)
        ]
        self._console.print(tables.clothes_table(answers))
        return answers

    def _burst(self, url: str, profiles: Profiles, photos: Sequence[Photo]) -> BurstResult:
        device = profiles.device_class
        mix = burst_mix(profiles.by_task[PHOTOS], device, CLOTHES)
        with Client(url, timeout_s=2.0) as client, tempfile.TemporaryDirectory() as name:
            status = _status(client) or {}
            gateways = sum(m["role"] == "gateway" for m in status.get("members", [])) or 1
            service_s = estimate_service_s(mix, profiles.by_task, device)
            per_s = capacity_per_s(gateways, service_s)
            steps = plan_steps(per_s, self._seconds)
            spec = LoadSpec(url=url, kinds=_kinds(profiles, photos, mix, Path(name)), steps=steps)
            self._say(
                f"about {per_s:.0f} queries/s of this mix fit at full accuracy; sending "
                + ", ".join(f"{step.per_s:.0f}" for step in steps)
                + f" a second, {self._seconds / len(steps):.0f} s each"
            )
            query_log = QueryLog(spec.kinds)
            with LoadProcess(spec, Path(name)) as load:
                self._watch(load, query_log, spec, client)
            _, memory_bytes = tables.queue_and_memory(_status(client) or {})
        self._console.print(tables.kinds_table(query_log))
        return BurstResult(spec, query_log, gateways, service_s, load.cpu_s, memory_bytes)

    def _watch(
        self, load: LoadProcess, query_log: QueryLog, spec: LoadSpec, client: Client
    ) -> None:
        """Show the burst as it goes: a table on a terminal, now and then a line elsewhere."""
        screen = _console(sys.stderr)
        live = Live(console=screen, auto_refresh=False, transient=True)
        with live if screen.is_terminal else nullcontext():
            for second, rows in enumerate(load.batches(), start=1):
                query_log.add(rows)
                at_s = min(float(second), self._seconds)
                if screen.is_terminal:
                    table = tables.live_table(query_log, at_s, spec, PHOTOS, _status(client))
                    live.update(table, refresh=True)
                elif second % _PLAIN_EVERY_S == 0 and second <= self._seconds:
                    screen.print(tables.live_line(query_log, at_s, self._seconds, _status(client)))

    def _write(self, document: dict[str, Any], photos: Sequence[Photo]) -> Path:
        thumbnails = {photo.name: pictures.thumbnail(photo) for photo in photos}
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


def _console(file: Any) -> Console:
    width = None if file.isatty() else PIPED_WIDTH
    return Console(file=file, width=width, highlight=False, emoji=False)


def _clothes(count: int, seed: int = 0) -> tuple[Any, Any]:
    """``count`` labelled images of the test split, the same for a seed."""
    from modelless.variants.zoo.fashion_mnist import FashionMnist

    images, labels = FashionMnist().test_split()
    chosen = np.random.default_rng(seed).choice(len(images), count, replace=False)
    return images[chosen], labels[chosen]


def _kinds(
    profiles: Profiles, photos: Sequence[Photo], mix: Sequence[MixPart], folder: Path
) -> list[KindSpec]:
    tasks = profiles.tasks
    clothes, truth = _clothes(64, seed=1)
    np.save(folder / f"{PHOTOS}.npy", np.stack([photo.pixels for photo in photos]))
    np.save(folder / f"{CLOTHES}.npy", clothes)
    labels = {
        PHOTOS: [pictures.acceptable_indices(photo, tasks[PHOTOS].labels) for photo in photos],
        CLOTHES: [[int(label)] for label in truth],
    }
    limits = [parameters_of(part.named.slo) for part in mix]
    return [
        KindSpec(
            name=part.named.name,
            task=part.task,
            limits=each,
            weight=part.weight,
            deadline_ms=each["latency_ms"],
            images=folder / f"{part.task}.npy",
            labels=labels[part.task],
            input_name=tasks[part.task].inputs[0].name,
            output_name=tasks[part.task].outputs[0].name,
        )
        for part, each in zip(mix, limits, strict=True)
    ]


def _status(client: Client) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.get("/modelless/status")
    except ModellessError:  # a table without a queue is better than no table
        return None
    return found
