"""How well forecasters foresee recorded demand, a second at a time, over two horizons.

    python benchmarks/simulation/forecasters.py [--json FILE] [--traces NAME ...] [--horizons 10 60]

A forecaster is told the arrivals of each second and asked for the mean rate over the horizon that
follows. The pinball loss at 0.9 (queries a second, less is better) prices a query too few nine
times as high as one too many, as capacity planning does; the weighted absolute percentage error is
the sum of all errors over the sum of all demand; coverage is how often demand stayed within the
forecast. The first minutes teach and are not counted. A trace that is not there is skipped, and
said so; if none is, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelless.policies.forecast.ewma import Ewma
from modelless.policies.forecast.holt_winters import HoltWinters
from modelless.policies.forecast.lag_quantile import LagQuantile
from modelless.policies.forecast.last_value import LastValue
from modelless.policies.seams import Forecaster

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
TRACES = ("azure_llm_conv", "mooncake_conversation")
QUANTILE = 0.9
TEACHING_S = 300
SCOPE = "task"

MAKERS: dict[str, Callable[[float], Forecaster]] = {
    "last-value": lambda _: LastValue(),
    "ewma": lambda _: Ewma(),
    "ewma, half-life 60 s": lambda _: Ewma(half_life_s=60.0),
    "holt-winters": lambda _: HoltWinters(),
    "lag-quantile 0.5": lambda horizon_s: LagQuantile(quantile=0.5, horizon_s=horizon_s),
    "lag-quantile": lambda horizon_s: LagQuantile(horizon_s=horizon_s),
}
"""The forecasters that are compared, by name; made for a horizon, for those that learn for one."""


def read_trace(path: Path) -> NDArray[np.int64]:
    arrivals_s = np.loadtxt(path, delimiter=",", skiprows=1, usecols=0)
    return np.bincount(arrivals_s.astype(np.int64))


def backtest(forecaster: Forecaster, counts: NDArray[np.int64], horizon_s: int) -> dict[str, float]:
    upto = np.concatenate([[0], np.cumsum(counts)])
    expected, came = [], []
    for second in range(1, len(counts) - horizon_s + 1):
        forecaster.observe(float(second), {SCOPE: float(counts[second - 1])})
        if second >= TEACHING_S:
            expected.append(forecaster.forecast(float(horizon_s)).get(SCOPE, 0.0))
            came.append((upto[second + horizon_s] - upto[second]) / horizon_s)
    missing = np.array(came) - np.array(expected)
    pinball = np.maximum(QUANTILE * missing, (QUANTILE - 1.0) * missing)
    return {
        "pinball_per_s": round(float(pinball.mean()), 4),
        "wape_percent": round(100.0 * float(np.abs(missing).sum() / np.sum(came)), 2),
        "coverage_percent": round(100.0 * float((missing <= 0.0).mean()), 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the traces are")
    parser.add_argument("--traces", nargs="+", default=TRACES)
    parser.add_argument("--horizons", type=int, nargs="+", default=[10, 60], help="seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    told = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for trace in told.traces:
        path = told.folder / f"{trace}.csv"
        if not path.is_file():
            print(f"SKIPPED {trace}: there is no {path}", file=sys.stderr)
            continue
        counts = read_trace(path)
        rows += [
            {
                "trace": trace,
                "horizon_s": horizon_s,
                "forecaster": name,
                **backtest(make(float(horizon_s)), counts, horizon_s),
            }
            for horizon_s in told.horizons
            for name, make in MAKERS.items()
        ]
    print(
        f"{'trace':22} {'horizon s':>9}  {'forecaster':22} "
        f"{'pinball /s':>10} {'WAPE %':>8} {'coverage %':>10}"
    )
    for row in rows:
        print(
            f"{row['trace']:22} {row['horizon_s']:9}  {row['forecaster']:22} "
            f"{row['pinball_per_s']:10.4f} {row['wape_percent']:8.2f} "
            f"{row['coverage_percent']:10.1f}"
        )
    if told.json is not None:
        told.json.write_text(json.dumps({"quantile": QUANTILE, "rows": rows}, indent=2) + "\n")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
