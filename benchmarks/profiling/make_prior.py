"""Make ``data/prior.json`` from public tables; takes about half an hour on two cores.

    python benchmarks/profiling/make_prior.py TABLE.csv...

It takes three steps, each determined by the seed. Robust least squares with a level for each device
fits the roofline's constants of each device kind. The marginal likelihood of samples of every
source fits the variances, once with and once without item effects, and their mean is taken. Then
groups of variances are scaled by how well a left-out device is predicted from ten of its
measurements.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.optimize import least_squares, minimize

from modelless.profiler.cost_model.unmeasured.features import (
    LEVELS,
    NameCodes,
    Points,
    encode,
    item_latency_log,
)
from modelless.profiler.cost_model.unmeasured.gaussian_process import (
    ConditionedProcess,
    GaussianProcess,
)
from modelless.profiler.cost_model.unmeasured.item_effects import ItemEffects
from modelless.profiler.cost_model.unmeasured.kernel import TERMS, Kernel, weighted_terms
from modelless.profiler.cost_model.unmeasured.prior import FORMAT, KINDS, digest_of
from modelless.profiler.cost_model.unmeasured.roofline import COMPONENTS, Roofline
from modelless.profiler.measure.table import TableRow, read_table
from modelless.variants.estimates import FloatArray

IntArray = NDArray[np.intp]

SHOTS = 10
_START_LOG = -4.0  # of a variance
_ABSENT_LOG = -13.0
_SAMPLE = 450  # rows of a source in a sample
_SAMPLES = {"few": 1, "many": 2}  # samples of sources with few and with many rows
_MANY = 2000
_ROWS_OF_MODEL = 16
_ITERATIONS = 40
_LEAST_VARIANCE, _MOST_VARIANCE = 1e-4, 4.0
# Variances of the levels beside the roofline, for devices that are not measured: in the tables the
# standard deviation is 1.4 among sources, 0.7 among the kinds of one, 1.0 among their devices.
_LEVEL_VARIANCES = {"all": 1.0, "kind": 0.5, "source": 2.0, "device": 1.0}
_WANTED, _KNOWN, _RELATED = 150, 550, 450  # rows of a left-out device
_DEVICES = 4  # of a source, at most
_DRAWS = 3
_LEAST_GAIN = 2e-4
_FAR = 1.5  # larger errors in log latency count as this one

_LOW, _MIDDLE, _HIGH = ("device", "setting"), ("kind", "precision", "engine"), ("all", "source")
GROUPS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = tuple(
    (levels, terms)
    for levels in (_LOW, _MIDDLE, _HIGH)
    for terms in (
        ("balance",),
        ("linear",),
        ("smooth", "local"),
        ("family", "model"),
        ("name",),
        ("elsewhere_linear", "elsewhere_smooth"),
    )
)
"""The levels and terms whose variances are scaled together. Constants are not scaled, because ten
measurements of each device do not show how far apart devices lie."""


def main(
    tables: Annotated[list[Path], typer.Argument(help="Profiles in the canonical schema.")],
    output: Annotated[Path, typer.Option(help="Where to write.")] = Path("prior.json"),
    version: Annotated[str, typer.Option(help="Of the figures.")] = "1",
    rounds: Annotated[int, typer.Option(help="Of the last step.")] = 3,
    seed: Annotated[int, typer.Option(help="Of all samples.")] = 0,
) -> None:
    """Make a prior."""
    by_table = {path.name: read_table(path) for path in tables}
    rows = [row for some in by_table.values() for row in some]
    rng = np.random.default_rng(seed)
    roofline = fit_roofline(rows)
    samples = [_sampled(some, roofline) for some in _samples(rows, rng)]
    with_all, without = (fit_variances(samples, use) for use in (True, False))
    variances = 0.5 * (with_all[0] + without[0])
    # Measurements determine the levels: the prior of a level must not influence this step.
    variances = _with_levels(variances, dict.fromkeys(("all", "kind", "source"), _MOST_VARIANCE))
    kernel = Kernel(variances, 0.5 * (with_all[1] + without[1]))
    devices = [
        _left_out_device(some, device, roofline, rng) for some, device in _left_out(rows, rng)
    ]
    kernel = refine(kernel, devices, rounds)
    kernel = replace(kernel, variances=_with_levels(kernel.variances, _LEVEL_VARIANCES))
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": version,
        "made_by": "benchmarks.profiling.make_prior",
        "made_from": {name: len(some) for name, some in by_table.items()},
        "variances": {
            level: {term: float(f"{kernel.variances[i, j]:.4g}") for j, term in enumerate(TERMS)}
            for i, level in enumerate(LEVELS)
        },
        "noise_variance": float(f"{kernel.noise_variance:.4g}"),
        "roofline": {
            kind: {
                name: float(f"{value:.4g}")
                for name, value in zip(COMPONENTS, roofline.constants[kind], strict=True)
            }
            for kind in KINDS
        },
    }
    document["sha256"] = digest_of(document)
    output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _with_levels(variances: FloatArray, constants: Mapping[str, float]) -> FloatArray:
    """Returns the variances with these variances of the constant term by level."""
    changed = variances.copy()
    for level, variance in constants.items():
        changed[LEVELS.index(level), TERMS.index("constant")] = variance
    return changed


def fit_roofline(rows: Sequence[TableRow]) -> Roofline:
    """Returns the constants by device kind, fitted to the rows with known sizes."""
    constants = {}
    plain = Roofline({kind: np.ones(len(COMPONENTS)) for kind in KINDS})
    for kind in KINDS:
        some = [row for row in rows if row.device_kind == kind and row.params_m and row.gmacs]
        points = encode(some, NameCodes(), plain)
        work = points.shares * np.exp(points.roofline_log)[:, None]
        usual = np.median(work, axis=0)
        is_known = usual > 0.0  # no table contains an NPU's activations: they are left out
        usual[~is_known] = 1.0
        target = item_latency_log(some)
        _, group = np.unique(points.level("setting"), return_inverse=True)
        group = group.reshape(-1)
        levels = np.bincount(group, target) / np.bincount(group)

        def misfit(
            unknown: FloatArray,
            work: FloatArray = work / usual,
            group: IntArray = group,
            target: FloatArray = target,
        ) -> FloatArray:
            balance = unknown[: len(COMPONENTS)]
            level = unknown[len(COMPONENTS) :]
            time_log = np.log(work @ np.exp(balance) + 1e-12)
            return np.concatenate([time_log + level[group] - target, 0.1 * balance])

        start = np.concatenate([np.zeros(len(COMPONENTS)), levels])
        found = least_squares(misfit, start, loss="soft_l1", f_scale=0.3).x
        balance, level = found[: len(COMPONENTS)], found[len(COMPONENTS) :]
        scale = np.exp(balance + float(np.median(level))) / usual
        constants[kind] = np.where(is_known, scale, 0.0)
    return Roofline(constants)


@dataclass(frozen=True, slots=True)
class Sample:
    """Points and their values: log latency less the roofline's."""

    points: Points
    values: FloatArray


def fit_variances(samples: Sequence[Sample], use_item_effects: bool) -> tuple[FloatArray, float]:
    """Returns the variances, shape (7, 10), and the noise variance of the largest likelihood."""
    absent = np.zeros((len(LEVELS), len(TERMS)), dtype=bool)
    if not use_item_effects:
        absent[:, [TERMS.index("elsewhere_linear"), TERMS.index("elsewhere_smooth")]] = True
    usual = np.append(np.where(absent, _ABSENT_LOG, _START_LOG).ravel(), _START_LOG)
    bounds = [(low, low) if low == _ABSENT_LOG else (-12.0, 4.0) for low in usual]
    parts = [np.stack(list(_parts(sample.points))) for sample in samples]

    def loss(logs: FloatArray) -> tuple[float, FloatArray]:
        variances = np.exp(logs)
        total, slope = 0.0, np.zeros_like(logs)
        for sample, each in zip(samples, parts, strict=True):
            count = len(sample.values)
            weights = variances[:-1].astype(np.float32)
            covariance = np.tensordot(weights, each, 1).astype(np.float64)
            covariance += (variances[-1] + 1e-6) * np.eye(count)
            try:
                factor = cholesky(covariance, lower=True)
            except LinAlgError:
                return 1e12, slope
            inverse = cho_solve((factor, True), np.eye(count))
            solved = inverse @ sample.values
            total += 0.5 * float(sample.values @ solved) + float(np.log(np.diag(factor)).sum())
            pull = (inverse - np.outer(solved, solved)).astype(np.float32)
            slope[:-1] += 0.5 * (each.reshape(len(each), -1) @ pull.ravel()) * variances[:-1]
            slope[-1] += 0.5 * float(np.trace(pull)) * variances[-1]
        # A weak preference for small variances: terms without evidence stay out.
        apart = logs - usual
        return total + 0.02 * float(apart @ apart), slope + 0.04 * apart

    found = minimize(
        loss, usual, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _ITERATIONS}
    )
    variances = np.exp(found.x)
    return variances[:-1].reshape(len(LEVELS), len(TERMS)), float(variances[-1])


@dataclass(frozen=True, slots=True)
class LeftOutDevice:
    """The points of a device to predict, and those of other devices to train on."""

    known: Sample
    wanted: Sample


def refine(kernel: Kernel, devices: Sequence[LeftOutDevice], rounds: int) -> Kernel:
    """Returns the kernel with groups of variances scaled while left-out devices improve."""
    best, least = kernel, _error(kernel, devices)
    steps = [np.log(4.0)] * (len(GROUPS) + 1)
    for _ in range(rounds):
        for number in range(len(steps)):
            for sign in (1.0, -1.0):
                factor = float(np.exp(sign * steps[number]))
                changed = _scaled(best, number, factor)
                error = _error(changed, devices)
                if error < least - _LEAST_GAIN:
                    best, least = changed, error
                    typer.echo(f"mean log of the mean error: {least:.4f}", err=True)
                    break
            else:
                steps[number] *= 0.6
    return best


def _scaled(kernel: Kernel, number: int, factor: float) -> Kernel:
    if number == len(GROUPS):
        return replace(kernel, noise_variance=kernel.noise_variance * factor)
    levels, terms = GROUPS[number]
    cells = np.ix_([LEVELS.index(one) for one in levels], [TERMS.index(one) for one in terms])
    variances = kernel.variances.copy()
    variances[cells] = np.clip(variances[cells] * factor, _LEAST_VARIANCE, _MOST_VARIANCE)
    return replace(kernel, variances=np.where(variances <= _LEAST_VARIANCE, 0.0, variances))


def _error(kernel: Kernel, devices: Sequence[LeftOutDevice]) -> float:
    """Returns the mean over devices of the log of their mean absolute error in log latency."""
    errors = []
    for device in devices:
        process = GaussianProcess(kernel, device.known.points, device.known.values)
        posterior = process.posterior_at(device.wanted.points)
        values = device.wanted.values
        drawn = []
        for seed in range(_DRAWS):
            order = np.random.default_rng(seed).permutation(len(values))
            shots, rest = np.sort(order[:SHOTS]), np.sort(order[SHOTS:])
            conditioned = ConditionedProcess(process, posterior.select(shots), values[shots])
            mean, _ = conditioned.predict(posterior.select(rest))
            drawn.append(np.minimum(np.abs(mean - values[rest]), _FAR).mean())
        errors.append(np.mean(drawn))
    return float(np.mean(np.log(errors)))


def _parts(points: Points) -> Iterator[NDArray[np.float32]]:
    """Yields the covariance of each level and term at unit variance, shape (n, n) each."""
    terms = [weighted_terms(points, points, unit) for unit in np.eye(len(TERMS))]
    for level in range(len(LEVELS)):
        codes = points.levels[:, level]
        shared = codes[:, None] == codes
        for term in terms:
            yield (shared * term).astype(np.float32)


def _samples(rows: Sequence[TableRow], rng: np.random.Generator) -> Iterator[list[TableRow]]:
    """Yields rows of each source, whole models at a time, and then some of all sources together."""
    mixed: list[TableRow] = []
    for source in dict.fromkeys(row.source for row in rows):
        mine = [row for row in rows if row.source == source]
        for _ in range(_SAMPLES["many" if len(mine) > _MANY else "few"]):
            by_model: dict[str, list[TableRow]] = {}
            for row in mine:
                by_model.setdefault(row.model, []).append(row)
            some: list[TableRow] = []
            for model in rng.permutation(sorted(by_model)):
                of_model = by_model[model]
                kept = rng.permutation(len(of_model))[:_ROWS_OF_MODEL]
                some += [of_model[number] for number in sorted(kept)]
                if len(some) >= _SAMPLE:
                    break
            yield some[:_SAMPLE]
        mixed += some[: _SAMPLE // 3]
    yield mixed


def _sampled(rows: Sequence[TableRow], roofline: Roofline) -> Sample:
    points = encode(rows, NameCodes(), roofline)
    values = item_latency_log(rows) - points.roofline_log
    return Sample(ItemEffects(points, values).add_to(points), values)


def _left_out(
    rows: Sequence[TableRow], rng: np.random.Generator
) -> Iterator[tuple[list[TableRow], str]]:
    """Yields the rows of each source that has several devices, with some of the devices."""
    for source in dict.fromkeys(row.source for row in rows):
        mine = [row for row in rows if row.source == source]
        devices = rng.permutation(sorted({row.device for row in mine})).tolist()
        if len(devices) > 1:
            yield from ((mine, device) for device in devices[:_DEVICES])


def _left_out_device(
    rows: Sequence[TableRow], device: str, roofline: Roofline, rng: np.random.Generator
) -> LeftOutDevice:
    def some(of: Sequence[TableRow], count: int) -> list[TableRow]:
        return [of[number] for number in rng.permutation(len(of))[:count]]

    wanted = some([row for row in rows if row.device == device], _WANTED)
    items = {(row.task, row.model, row.resolution_px) for row in wanted}
    others = [row for row in rows if row.device != device]
    related = [row for row in others if (row.task, row.model, row.resolution_px) in items]
    unrelated = [row for row in others if (row.task, row.model, row.resolution_px) not in items]
    known = some(related, _RELATED)
    known += some(unrelated, _KNOWN - len(known))
    names = NameCodes()
    known_points, wanted_points = (encode(each, names, roofline) for each in (known, wanted))
    known_values = item_latency_log(known) - known_points.roofline_log
    effects = ItemEffects(known_points, known_values)
    return LeftOutDevice(
        Sample(effects.add_to(known_points), known_values),
        Sample(
            effects.add_to(wanted_points), item_latency_log(wanted) - wanted_points.roofline_log
        ),
    )


if __name__ == "__main__":
    typer.run(main)
