"""Fit the laws of the worlds ``edge-core``, ``mixed-fleet`` and ``servegen-week`` to public tables.

    python benchmarks/simulation/fit_worlds.py

It prints what those worlds hold: their variants, and the figures of their arrivals. It reads the
tables through the worlds in ``worlds/tables`` and needs what they need.

On each device class, the item and the launch are the slope and the intercept of a variant's latency
over the batch:

    latency_ms = launch_ms + item_ms x batch
    launch_ms = fixed_ms + share x item_ms            least squares, neither is negative
    log item_ms = a + b x accuracy + scatter          least squares; scatter: its standard deviation
    log memory_mib = c + d x log item_ms + scatter    likewise
    load_s = 0.2 + memory_mib / 500                   nobody measured it

As many variants as were fitted are drawn: their accuracies spread evenly over the same range, their
scatters over the quantiles of a normal distribution, in random order.

The rates of a conversation trace (Mooncake) rise over its hour: half a cosine, least squares. Those
of a language model's 162 clients (ServeGen), summed, jump between two levels: a Markov-modulated
Poisson process with the same mean, variance and skewness, and the same autocorrelation after two
hours (Heffes and Lucantoni, 1986, match a process like it). Which task is popular: a Zipf law over
24 tasks, fitted to their shares; pairs of ranks swap as often as the shares' correlation over six
hours says.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from modelless.controller.sim.worlds.profiles import build_fleet
from modelless.controller.sim.worlds.world import MIB, load_world

WORLDS = Path(__file__).parents[1] / "worlds" / "tables"
TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
LARGEST = 8  # items of a batch: limits.max_batch
WINDOW_S = 600.0  # of ServeGen's rates
TASKS = 24

Floats = NDArray[np.float64]


def fit_line(x: Floats, y: Floats) -> tuple[float, float, float]:
    slope, intercept = np.polyfit(x, y, 1)
    return intercept, slope, float(np.std(y - intercept - slope * x, ddof=2))


def print_variants(world: str, seed: int) -> None:
    file = load_world(WORLDS / f"{world}.yaml")
    fleet = build_fleet(file)
    memory_mib = {
        (each.variant_id, each.device_class): each.memory_bytes / MIB for each in fleet.measurements
    }
    rng = np.random.default_rng(seed)
    for device in fleet.device_classes:
        rows = [
            (
                facts.accuracy_percent,
                facts.batch_s[device][1] * 1e3,
                facts.batch_s[device][LARGEST] * 1e3,
                memory_mib[facts.variant_id, device],
            )
            for facts in fleet.facts
            if device in facts.batch_s
        ]
        accuracy, first_ms, last_ms, size_mib = np.array(rows).T
        item_ms = (last_ms - first_ms) / (LARGEST - 1)
        launch_ms = first_ms - item_ms
        (fixed_ms, share), _ = nnls(np.stack([np.ones(len(rows)), item_ms], axis=1), launch_ms)
        a, b, item_scatter = fit_line(accuracy - accuracy.min(), np.log(item_ms))
        c, d, size_scatter = fit_line(np.log(item_ms), np.log(size_mib))
        span = np.ptp(accuracy)
        print(
            f"        # {device}: {len(rows)} variants of {accuracy.min():.1f} to "
            f"{accuracy.max():.1f} %;\n"
            f"        # latency_ms = {fixed_ms:.1f} + item_ms x (batch + {share:.1f});\n"
            f"        # item_ms from {math.exp(a):.2g} to {math.exp(a + b * span):.2g}, "
            f"scatter {item_scatter:.2g} of its logarithm;\n"
            f"        # memory_mib = {math.exp(c):.4g} x item_ms ^ {d:.2g}, "
            f"scatter {size_scatter:.2g} likewise"
        )
        percents = np.linspace(accuracy.min(), accuracy.max(), len(rows))
        places = [NormalDist().inv_cdf((n + 0.5) / len(rows)) for n in range(len(rows))]
        logs = a + b * (percents - accuracy.min()) + item_scatter * rng.permutation(places)
        sizes = np.exp(c + d * logs + size_scatter * rng.permutation(places))
        for number, (percent, item, size) in enumerate(
            zip(percents, np.exp(logs), sizes, strict=True)
        ):
            points = ", ".join(
                f"{{device: {device}, batch: {batch}, "
                f"p50_ms: {fixed_ms + item * (share + batch):.3g}}}"
                for batch in (1, LARGEST)
            )
            print(
                f"        - {{model: {device}-{number:02d}, accuracy: {percent:.1f}, "
                f"memory_mib: {size:.0f}, load_s: {0.2 + size / 500:.2g}, points: [{points}]}}"
            )


def print_rising_rate(trace: str) -> None:
    arrivals_s = np.loadtxt(TRACES / f"{trace}.csv", skiprows=1)
    end_s = float(arrivals_s.max())
    counts, edges = np.histogram(arrivals_s, bins=59)
    middle_s = (edges[1:] + edges[:-1]) / 2
    swing, mean = np.polyfit(-np.cos(math.pi * middle_s / end_s), counts / np.diff(edges), 1)
    print(f"{trace}: mean_per_s {mean:.3g}, swing {swing / mean:.2g}, ", end="")
    print(f"period_s {2 * end_s:.0f}, peak_at_s {end_s:.0f}")


def print_jumping_rate(trace: str) -> None:
    """Print two levels for the sum of recorded rates, and how popular tasks are."""
    start_s, stream, rate_per_s, _ = np.loadtxt(
        TRACES / f"{trace}.csv", delimiter=",", skiprows=1
    ).T
    windows = (start_s / WINDOW_S).astype(int)
    rates = np.zeros((windows.max() + 1, TASKS))  # a stream without a rate in a window is silent
    np.add.at(rates, (windows, stream.astype(int) % TASKS), rate_per_s)
    total = rates.sum(axis=1)
    mean, spread = total.mean(), total.std()
    skewness = float(np.mean(((total - mean) / spread) ** 3))
    high = (1.0 - skewness / math.sqrt(4.0 + skewness**2)) / 2.0  # the share of time
    lag = round(7200.0 / WINDOW_S)
    still = np.corrcoef(total[lag:], total[:-lag])[0, 1]
    relaxing_s = -7200.0 / math.log(still)
    print(
        f"{trace}: low_per_s {mean - spread * math.sqrt(high / (1 - high)):.3g}, "
        f"high_per_s {mean + spread * math.sqrt((1 - high) / high):.3g}, "
        f"mean_low_s {relaxing_s / high:.3g}, mean_high_s {relaxing_s / (1 - high):.3g}"
    )
    shares = rates / total[:, None]
    popular = np.sort(rates.sum(axis=0))[::-1]
    ranks = np.arange(1, TASKS + 1)
    zipf = -np.polyfit(np.log(ranks), np.log(popular), 1)[0]
    lag = round(21600.0 / WINDOW_S)
    alike = np.mean(
        [np.corrcoef(shares[n], shares[n + lag])[0, 1] for n in range(len(shares) - lag)]
    )
    swaps_per_s = -math.log(alike) / 21600.0 * TASKS / 2  # a swap moves 2 of them
    print(f"  zipf {zipf:.2g}, drift_every_s {1 / swaps_per_s:.0f}")


if __name__ == "__main__":
    for name in ("edge-core", "mixed-fleet"):
        print(f"{name}:")
        print_variants(name, seed=1)
    print_rising_rate("mooncake_conversation")
    print_jumping_rate("servegen_m_large")
