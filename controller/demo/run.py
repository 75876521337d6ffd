"""The demo from beginning to end: zoo, profile, cluster, photos, burst, report."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from modelless.common.errors import EnvironmentUnfitError, ModellessError
from modelless.controller.cli.cluster import curl_line
from modelless.controller.cli.screen import PIPED_WIDTH, Steps, show_progress, show_table
from modelless.controller.demo import tables
from modelless.controller.demo.asking import (
    Answer,
    Photo,
    ask_about_clothes,
    ask_about_photos,
    check_extras,
    load_photos,
    photos_document,
)
from modelless.controller.demo.cluster_process import free_port, running_cluster
from modelless.controller.demo.load import KindSpec, LoadProcess, LoadSpec
from modelless.controller.demo.page import render_page
from modelless.controller.demo.profiles import Profiles, is_trusted, measure_profiles
from modelless.controller.demo.query_log import QueryLog
from modelless.controller.demo.report import burst_document, document_of, variants_document
from modelless.controller.demo.slos import (
    MixPart,
    NamedSlo,
    burst_mix,
    capacity_per_s,
    cost_slos,
    estimate_service_s,
    photo_slos,
    plan_steps,
)
from modelless.controller.live.cluster.running import read_state
from modelless.controller.usecases.client import Client, parameters_of
from modelless.controller.usecases.progress import Note, Step
from modelless.controller.usecases.registry.zoo import zoo_add
from modelless.variants.vocabulary import Task

PHOTOS, CLOTHES = "imagenet", "fashion-mnist"
DEVICE_CLASS = "cpu-1"
PROFILE_BUDGET_S = 55.0
_CLOTHES_IMAGES = 500
_CLOTHES_BATCH = 8
_LOADED_S = 60.0
_PLAIN_EVERY_S = 10
_MOST_WRONG = 5
_SNIPPET = """\
import numpy as np
import tritonclient.http as http
from skimage.data import chelsea

photo = np.ascontiguousarray(chelsea())[None]
image = http.InferInput({input!r}, list(photo.shape), "UINT8")
image.set_data_from_numpy(photo)
client = http.InferenceServerClient({host!r})
limits = {{"latency_ms": 100, "min_accuracy": 74.0}}
result = client.infer({task!r}, [image], parameters=limits)
print(result.as_numpy({output!r}).argmax(), result.get_response()["parameters"])"""


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
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _Demo(home.resolve(), report_dir, seconds).run(port, keep=keep)
    finally:
        signal.signal(signal.SIGTERM, before)


class _Demo:
    def __init__(self, home: Path, report_dir: Path, seconds: float) -> None:
        self._home, self._report_dir, self._seconds = home, report_dir, seconds
        self._console = _console(sys.stdout)
        self._stages: list[tuple[str, float]] = []
        self._notes: list[str] = []

    def run(self, port: int, *, keep: bool) -> None:
        made_at, began_s = datetime.now(UTC), time.monotonic()
        self._check()
        self._say(f"home: {self._home}; it is kept (MODELLESS_HOME=DIR make demo uses another)")
        with self._stage("the zoo"):
            self._add_zoo()
        with self._stage("the profile"):
            profiles = self._profile()
        free = free_port(port)
        if free != port:
            self._say(f"port {port} is taken: using {free}")
        slos = photo_slos(profiles.by_task[PHOTOS], profiles.device_class)
        with ExitStack() as cluster:
            with self._stage("up"):
                up_s = time.monotonic()
                running = cluster.enter_context(
                    running_cluster(self._home, free, keep=keep, on_progress=self._whisper)
                )
                client = cluster.enter_context(Client(running.url))
                shown = load_photos()
                ask_about_photos(client, profiles.tasks[PHOTOS], shown[:1], slos[:1], {})
                first_answer_s = time.monotonic() - up_s
                self._say(f"first answer {first_answer_s:.1f} s after the start")
                wanted = sum(map(len, profiles.by_task.values()))
                held = self._wait_loaded(client, wanted)
                self._say(f"{held} of {wanted} variants loaded in every gateway")
                self._say(f"console, while this runs: {running.url}/console")
            with self._stage("photos"):
                answers = self._ask_about_photos(client, profiles, shown, slos)
                photos = photos_document(shown, slos, answers)
                clothes = self._ask_about_clothes(client, profiles)
                for line in photo_summary(photos):
                    self._say(line)
            with self._stage("burst"):
                burst = self._burst(running.url, profiles, shown)
            end_s = time.monotonic()
        if not keep:
            self._stages.append(("down", time.monotonic() - end_s))
            self._say(f"[dim]everything is down ({self._stages[-1][1]:.1f} s)[/]")
        self._stages.append(("all of it", time.monotonic() - began_s))
        document = document_of(
            profiles, made_at=made_at, stages=self._stages, first_answer_s=first_answer_s,
            photos=photos, clothes=clothes, burst=burst, notes=self._notes,
        )  # fmt: skip
        page = self._write(document, shown)
        for line in summary(document, page):
            self._say(line)
        if keep:
            for line in how_to_ask(profiles.tasks[PHOTOS], running.url):
                self._console.print(line, markup=False, soft_wrap=True)

    # -- stages -------------------------------------------------------------------------------

    def _check(self) -> None:
        """Fail now rather than minutes later."""
        check_extras()
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
        variants = variants_document(profiles.by_task[PHOTOS])
        self._say(f"worth having, of the {len(variants)} variants of {PHOTOS}:")
        _show(tables.variants_table(each for each in variants if each["on_frontier"]))
        return profiles

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
        self, client: Client, profiles: Profiles, photos: Sequence[Photo], slos: Sequence[NamedSlo]
    ) -> list[Answer]:
        resolutions = {p.variant.id: p.variant.resolution_px for p in profiles.by_task[PHOTOS]}
        total = len(photos) * len(slos)
        with Steps("photos") as steps:
            done = iter(range(1, total + 1))
            answers = ask_about_photos(
                client, profiles.tasks[PHOTOS], photos, slos, resolutions,
                lambda answer: steps.at(next(done), total, answer["photo"]),
            )  # fmt: skip
        _show(tables.answers_table(answers))
        for name, words in tables.refusals(answers).items():
            self._say(f"[red]{escape(name)}[/]: {escape(words)}")
        return answers

    def _ask_about_clothes(self, client: Client, profiles: Profiles) -> list[dict[str, Any]]:
        images, labels = _clothes(_CLOTHES_IMAGES)
        answers = [
            ask_about_clothes(client, profiles.tasks[CLOTHES], images, labels, slo, _CLOTHES_BATCH)
            for slo in cost_slos(profiles.by_task[CLOTHES], profiles.device_class, _CLOTHES_BATCH)
        ]
        _show(tables.clothes_table(answers))
        return answers

    def _burst(self, url: str, profiles: Profiles, photos: Sequence[Photo]) -> dict[str, Any]:
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
        burst = burst_document(
            spec, query_log, profiles, gateways=gateways, mean_service_s=service_s,
            client_cpu_s=load.cpu_s, memory_bytes=memory_bytes,
        )  # fmt: skip
        _show(tables.kinds_table(burst))
        return burst

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
        thumbnails = {photo.name: photo.thumbnail() for photo in photos}
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

    def _whisper(self, event: Step | Note) -> None:
        if isinstance(event, Note):
            self._say(f"[dim]{escape(event.message)}[/]")


def photo_summary(photos: Mapping[str, Any]) -> Iterator[str]:
    """How many variants were chosen, and how many labels are sane, of the report's ``photos``."""
    answers = photos["answers"]
    feasible = {slo["name"] for slo in photos["slos"] if slo["is_feasible"]}
    refused = [answer["slo"] for answer in answers if answer["status"] != 200]
    unforeseen = sum(name in feasible for name in refused)
    yield (
        f"{len(photos['distinct_variants'])} different variants chosen; {photos['sane']} of "
        f"{photos['judged']} labels sane at 224 px and more; {len(refused) - unforeseen} of "
        f"{len(answers)} refused, as they had to be"
    )
    if unforeseen:
        yield (
            f"[yellow]{unforeseen} more refused: the machine is busier now than when it was "
            "profiled[/]"
        )
    wrong = {
        (answer["photo"], answer["label"]): answer["variant"]
        for answer in answers
        if answer["is_judged"] and not answer["is_sane"]
    }
    for (photo, label), variant in list(wrong.items())[:_MOST_WRONG]:
        yield f"[yellow]{photo}: {label!r}, says {variant}[/]"


def summary(document: Mapping[str, Any], page: Path) -> Iterator[str]:
    """Where the report is, and three lines of what it says."""
    photos, burst = document["photos"], document["burst"]
    total, whole = burst["total"], document["stages"][-1]
    yield ""
    yield f"[bold]{page}[/] tells all of it; {page.with_name('report.json')} has the data"
    yield (
        f"photos: {len(photos['distinct_variants'])} variants chosen for {len(photos['photos'])} "
        f"photos under {len(photos['slos'])} limits, {photos['sane']} of {photos['judged']} labels "
        "sane"
    )
    yield (
        f"burst: {total['sent']:,} queries, {tables.percent(total['share_in_time'])} in time, "
        f"{total['answered'] - total['in_time']:,} late, {total['refused']:,} refused, "
        f"{total['errors']:,} errors, {len(total['by_variant'])} variants in use"
    )
    yield (
        f"time: {whole['seconds']:.0f} s in all, {document['first_answer_s']:.1f} s from start to "
        "first answer"
    )


def how_to_ask(task: Task, url: str) -> Iterator[str]:
    """A ``curl`` line and a ``tritonclient`` snippet that work while the cluster is up."""
    yield f"\nStill up at {url}; 'modelless down' takes it down. Ask it more:\n"
    yield curl_line(url, task)
    yield ""
    yield _SNIPPET.format(
        input=task.inputs[0].name,
        output=task.outputs[0].name,
        task=task.name,
        host=url.removeprefix("http://"),
    )


def _show(shown: tables.Shown) -> None:
    show_table(shown.heads, shown.rows, right=shown.right)


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
    names = tasks[PHOTOS].labels
    labels = {
        PHOTOS: [[i for i, name in enumerate(names) if name in p.acceptable] for p in photos],
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
