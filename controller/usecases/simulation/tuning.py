"""Tuning: settings of the policies in charge that do better on recorded traffic, in the simulator.

The first half of a recording is searched, by the tree-structured Parzen estimator of Optuna (Akiba
et al., KDD 2019), and the second half judges what was found, beside the settings in charge, paired
by seed. Nothing is applied.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import yaml

from modelless import __version__
from modelless.common.errors import InvalidInputError, ModellessError, require
from modelless.common.files import write_whole
from modelless.controller.replay.as_world import write_world
from modelless.controller.sim.compare.compare import compare, scenarios_of
from modelless.controller.sim.compare.comparison import interval
from modelless.controller.sim.compare.contenders import Contender
from modelless.controller.sim.compare.jobs import Figures
from modelless.controller.sim.worlds.arrivals import TraceArrivals
from modelless.controller.sim.worlds.world import World, WorldFile, load_world
from modelless.controller.usecases.home import (
    AnyPath,
    Home,
    check_writable,
    home_folder,
    path_or_none,
)
from modelless.controller.usecases.progress import Progress, Step, ignore
from modelless.policies.discovery import build_policy, find_policy
from modelless.policies.policy_settings import settings_of
from modelless.policies.systems import SEAMS


class Figure(NamedTuple):
    """A figure of a run: its key, its unit, and 1 if less is better, -1 if more is."""

    key: str
    unit: str
    sign: int


FIGURES: Final[Mapping[str, Figure]] = {
    "cost": Figure("cost_usd", "USD of device time that batches took", 1),
    "rent": Figure("rent_usd", "USD of devices that were there", 1),
    "energy": Figure("energy_wh", "watt-hours", 1),
    "p99": Figure("p99", "ms", 1),
    "attainment": Figure("attainment", "share of the queries", -1),
    "accuracy": Figure("mean_accuracy", "per cent", -1),
    "value": Figure("value_per_query", "value per query", -1),
}
"""What can be an objective or bounded, by name."""

NEAR: Final = 0.02
"""Settings that gain no more than this share are not worth a change."""

_FACTORS: Final = (8.0, 4.0, 2.0, 1.0)
"""How far from its value a number is tried, the largest that the policy takes."""

_NUMBER: Final = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_BOUND: Final = re.compile(rf"\s*(\w+)\s*(<=|>=)\s*({_NUMBER})\s*")
_IN_CHARGE, _FOUND = "in charge", "found"


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure must not exceed (``sign`` 1) or fall below (-1)."""

    name: str
    sign: int
    most: float

    def excess(self, figures: Mapping[str, float]) -> float:
        """By how much the figure is beyond the bound; 0 or less if it is not."""
        return self.sign * (figures[self.name] - self.most)

    def __str__(self) -> str:
        return f"{self.name}{'<=' if self.sign > 0 else '>='}{self.most:g}"


def bounds_of(texts: Sequence[str]) -> tuple[Bound, ...]:
    """``attainment>=0.99`` and so on; InvalidInputError names the one that cannot be read."""
    found = []
    for text in texts:
        match = _BOUND.fullmatch(text)
        if match is None or match[1] not in FIGURES or not math.isfinite(float(match[3])):
            allowed = f"FIGURE>=NUMBER or FIGURE<=NUMBER; figures: {', '.join(FIGURES)}"
            raise InvalidInputError.of("subject-to", text, allowed)
        found.append(Bound(match[1], 1 if match[2] == "<=" else -1, float(match[3])))
    return tuple(found)


def tune(
    recording: AnyPath,
    *,
    objective: str = "cost",
    subject_to: Sequence[str] = ("attainment>=0.99",),
    trials: int = 60,
    seeds: int = 3,
    output: AnyPath | None = None,
    processes: int = 1,
    home: Home = None,
    on_progress: Progress = ignore,
) -> dict[str, Any]:
    """Search settings of the policies in charge that do better on recorded traffic.

    Every setting that is a number, a choice of words, or true or false is varied: numbers up to
    eight times up and down, as far as the policy takes them. The first half of the recording is
    searched; the second decides, over seeds of its own. A world without a trace is judged by other
    seeds. Intervals are over seeds: they tell the noise of devices, not that of other traffic.

    Args:
        recording: what ``modelless up --record`` wrote, or a world file.
        objective: one of ``FIGURES``.
        subject_to: bounds such as ``attainment>=0.99`` that must hold.
        trials: settings to try, those in charge included.
        seeds: runs of each trial; five times as many judge.
        output: a settings file for what is proposed; it must not be there yet.
        processes: runs at once, see ``compare``.
        home: of the store, for worlds with tasks from there.
        on_progress: receives the progress.

    Returns:
        Plain data: ``verdict``, ``proposed`` (policies, or None), ``in_charge`` and ``found`` with
        their policies and figures on both halves, ``gain``: the paired difference of the objective
        on the second half, as a share of what it was, with its 95 % interval.

    Raises:
        EnvironmentUnfitError: Optuna is not installed.
        InvalidInputError: an argument does not fit, or no setting can be varied.

    Examples:
        >>> found = modelless.tune("run-1", objective="cost", output="tuned.yaml")  # doctest: +SKIP
        >>> found["verdict"]  # doctest: +SKIP
        'Better: what was found is 18.2% better (16.9% to 19.5%). cost 0.0058 -> 0.0048, ...'
    """
    optuna = require("optuna", "tune", "pip install 'modelless[tune]'")
    if objective not in FIGURES:
        raise InvalidInputError.of("objective", objective, ", ".join(FIGURES))
    bounds, sign = bounds_of(subject_to), FIGURES[objective].sign
    path = path_or_none(output)
    if path is not None and path.exists():
        raise InvalidInputError.of("output", str(path), "a file that is not there yet")
    if path is not None:
        check_writable("--output", path)
    with TemporaryDirectory() as folder:
        file = _world_of(Path(recording), Path(folder))
        searched, judged = _halves(file)
        in_charge = _policies_of(file.world)
        space = dict(_space(in_charge))
        if not space:
            raise InvalidInputError.of("recording", str(recording), "policies that have settings")

        def run(
            world: WorldFile, contenders: Mapping[str, Any], numbers: Sequence[int]
        ) -> dict[str, list[dict[str, float]]]:
            done = compare(
                scenarios_of([world]),
                [Contender(name, policies) for name, policies in contenders.items()],
                numbers, bound=False, processes=processes, home=home_folder(home),
            )  # fmt: skip
            found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
            for each in done:
                if each.figures is None:
                    raise InvalidInputError.of("policies", each.contender, each.error)
                found[each.contender].append(_read(each.figures))
            return found

        def attempt(trial: Any) -> float:
            policies = _changed(in_charge, {name: each(trial) for name, each in space.items()})
            try:
                (runs,) = run(searched, {_FOUND: policies}, range(1, seeds + 1)).values()
            except InvalidInputError as refused:  # by a policy: these values do not go together
                if not trial.number:
                    raise
                raise optuna.TrialPruned(str(refused)) from refused
            means = _means(runs)
            for bound in bounds:
                trial.set_constraint(str(bound), bound.excess(means))
            trial.set_user_attr("policies", policies)
            trial.set_user_attr("figures", means)
            return means[objective]

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=0, multivariate=True),
            direction="minimize" if sign > 0 else "maximize",
        )
        study.enqueue_trial({name: each.value for name, each in space.items()})
        study.optimize(
            attempt,
            n_trials=trials,
            callbacks=[lambda _, trial: on_progress(Step("trials", trial.number + 1, trials))],
        )
        done = [trial for trial in study.trials if "figures" in trial.user_attrs]

        def merit(trial: Any) -> tuple[float, float]:
            means = trial.user_attrs["figures"]
            return sum(max(b.excess(means), 0.0) for b in bounds), sign * means[objective]

        best = min(done, key=merit)
        policies = best.user_attrs["policies"] if best.number else in_charge
        numbers = range(seeds + 1, 6 * seeds + 1)
        both = run(judged, {_IN_CHARGE: in_charge, _FOUND: policies}, numbers)
    before, after = _means(both[_IN_CHARGE]), _means(both[_FOUND])
    scale = abs(before[objective]) or 1.0
    pairs = zip(both[_IN_CHARGE], both[_FOUND], strict=True)
    gain = interval([sign * (a[objective] - b[objective]) / scale for a, b in pairs])
    worth, verdict = _verdict(gain, before, after, bounds, is_other=bool(best.number))
    others = (name for name in ("attainment", "accuracy") if name != objective)
    told = ", ".join(f"{name} {before[name]:.4g} -> {after[name]:.4g}" for name in others)
    verdict = f"{verdict} {objective} {before[objective]:.4g} -> {after[objective]:.4g}, {told}."
    document = {
        "modelless": __version__,
        "objective": objective,
        "subject_to": [str(bound) for bound in bounds],
        "trials": len(done),
        "verdict": verdict,
        "proposed": policies if worth else None,
        "gain": gain,
        "in_charge": {
            "policies": in_charge, "searched": done[0].user_attrs["figures"], "judged": before
        },
        "found": {
            "policies": policies, "searched": best.user_attrs["figures"], "judged": after
        },
    }  # fmt: skip
    if worth and path is not None:
        text = f"# {verdict}\n{yaml.safe_dump({'policies': policies}, sort_keys=False)}"
        write_whole(path, text.encode(), mode=0o644)
    return document


def _verdict(
    gain: Mapping[str, float | None],
    before: Mapping[str, float],
    after: Mapping[str, float],
    bounds: Sequence[Bound],
    *,
    is_other: bool,
) -> tuple[bool, str]:
    """Whether to propose what was found, and why, in a sentence."""
    broken = [bound for bound in bounds if bound.excess(after) > 0.0]
    mean, low, high = gain["mean"] or 0.0, gain["low"] or 0.0, gain["high"] or 0.0
    told = f"{mean:.1%} better ({low:.1%} to {high:.1%})"
    if not is_other:
        return False, "Keep the settings in charge: the search found none that are better."
    if broken:
        names = ", ".join(f"{bound} ({bound.name} {after[bound.name]:.4g})" for bound in broken)
        if low > 0.0 and mean > NEAR and all(b.excess(after) <= b.excess(before) for b in bounds):
            no_more = f"it breaks {names}, but no more than the settings in charge"
            return True, f"Better: what was found is {told}; {no_more}."
        return False, f"Keep the settings in charge: what was found breaks {names} when judged."
    was_broken = [bound for bound in bounds if bound.excess(before) > 0.0]
    if was_broken:
        names = ", ".join(map(str, was_broken))
        return True, f"Better: it keeps {names}, which the settings in charge break; it is {told}."
    if mean <= NEAR:
        return False, f"Keep the settings in charge: they are within 2 % of the best found, {told}."
    if low <= 0.0:
        return False, f"Keep the settings in charge: the difference may be chance, {told}."
    return True, f"Better: what was found is {told}."


def _world_of(recording: Path, folder: Path) -> WorldFile:
    if not recording.exists():
        raise InvalidInputError.of(
            "recording", str(recording), "a folder that 'up --record' wrote, or a world file"
        )
    if not recording.is_dir():
        return load_world(recording)
    write_world(recording, folder / "recording.yaml")
    return load_world(folder / "recording.yaml")


def _halves(file: WorldFile) -> tuple[WorldFile, WorldFile]:
    """The world to search and the one to judge: halves of a recording, else twice the same.

    A world whose streams all begin in its second half is not cut either.
    """
    world = file.world
    if world.duration_s is None or not all(
        isinstance(stream.arrivals, TraceArrivals) for stream in world.queries
    ):
        return file, file
    half_s = world.duration_s / 2.0
    if all(stream.start_s >= half_s for stream in world.queries):
        return file, file

    def piece(after_s: float) -> WorldFile:
        document = world.model_dump()
        streams = [s for s in document["queries"] if s["start_s"] < after_s + half_s]
        for stream in streams:
            passed_s = max(after_s - stream["start_s"], 0.0)
            stream["arrivals"]["from_s"] += passed_s * stream["time_scale"]
            stream["start_s"] = max(stream["start_s"] - after_s, 0.0)
        faults = [each for fault in document["faults"] for each in _within(fault, after_s, half_s)]
        changes = {"duration_s": half_s, "queries": streams, "faults": faults}
        return WorldFile(World(**{**document, **changes}), file.folder)

    return piece(0.0), piece(half_s)


def _within(fault: Mapping[str, Any], after_s: float, length_s: float) -> Iterator[dict[str, Any]]:
    """The part of a fault that a piece of the world sees, by the piece's clock; or none."""
    end = "back_s" if "back_s" in fault else "until_s"
    begin_s = max(fault["at_s"] - after_s, 0.0)
    end_s = None if fault[end] is None else fault[end] - after_s
    if begin_s < length_s and (end_s is None or end_s > 0.0):
        yield {**fault, "at_s": begin_s, end: end_s}


def _policies_of(world: World) -> dict[str, dict[str, Any]]:
    """The policies in charge by seam, each as a mapping."""
    found = {seam: getattr(world.policies, seam) for seam in SEAMS}
    return {
        seam: {"policy": each} if isinstance(each, str) else dict(each)
        for seam, each in found.items()
    }


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting that is varied: between two numbers, or among some values."""

    name: str
    value: Any
    low: Any = None
    high: Any = None
    values: Sequence[Any] = ()

    def __call__(self, trial: Any) -> Any:
        if self.values:
            return trial.suggest_categorical(self.name, self.values)
        suggest = trial.suggest_int if isinstance(self.value, int) else trial.suggest_float
        value = suggest(self.name, self.low, self.high, log=True)
        return value if isinstance(value, int) else float(f"{value:.3g}")


def _space(policies: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, _Setting]]:
    """What can be varied, by ``seam.setting``."""
    for seam, specification in policies.items():
        policy: type = find_policy(SEAMS[seam], specification["policy"])
        types = get_type_hints(policy.__init__)  # type: ignore[misc]  # of this very class
        for setting, parameter in settings_of(policy).items():
            value, kind = specification.get(setting, parameter.default), types.get(setting)
            name = f"{seam}.{setting}"

            def takes(tried: Any, setting: str = setting, seam: str = seam) -> bool:
                try:
                    build_policy(SEAMS[seam], {**policies[seam], setting: tried}, clairvoyant=True)
                except ModellessError:
                    return False
                return True

            if isinstance(value, bool):
                values: Sequence[Any] = (False, True)
            elif get_origin(kind) is Literal:
                values = get_args(kind)
            elif type(value) in (int, float) and value > 0:
                number = type(value)
                lower = [number(max(value / by, number is int)) for by in _FACTORS]
                higher = [number(value * by) for by in _FACTORS]
                low, high = next(filter(takes, lower), value), next(filter(takes, higher), value)
                if low < high:
                    yield name, _Setting(name, value, low, high)
                continue
            else:
                continue
            values = [each for each in values if takes(each)]
            if len(values) > 1:
                yield name, _Setting(name, value, values=values)


def _changed(
    policies: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    changed = {seam: dict(each) for seam, each in policies.items()}
    for name, value in values.items():
        seam, _, setting = name.partition(".")
        changed[seam][setting] = value
    return changed


def _read(figures: Figures) -> dict[str, float]:
    """The run's ``FIGURES``; what no query gave counts as 0."""
    flat = {**figures, "p99": figures["latency_ms"]["p99"]}
    return {name: float(flat[figure.key] or 0.0) for name, figure in FIGURES.items()}


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(run[name] for run in runs) for name in FIGURES}
