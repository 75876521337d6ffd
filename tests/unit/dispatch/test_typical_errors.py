"""The typical error of a device class: the median of its workers' errors, as they come and go."""

from __future__ import annotations

from statistics import median

import numpy as np

from modelless.controller.dispatch.quarantine import TypicalErrors


def test_it_is_the_median_of_the_errors_put_and_not_dropped() -> None:
    rng = np.random.default_rng(1)
    usual, known = TypicalErrors(), dict[str, tuple[str, float]]()
    for _ in range(2000):
        worker, device_class = f"w{rng.integers(12)}", f"c{rng.integers(2)}"
        if rng.random() < 0.3:
            usual.drop(worker)
            known.pop(worker, None)
        else:
            error = float(rng.integers(5)) / 4.0  # often equal
            usual.put(worker, device_class, error)
            known[worker] = device_class, error
        for name in ("c0", "c1"):
            errors = [error for of, error in known.values() if of == name]
            assert usual.median(name) == (median(errors) if errors else None)


def test_of_a_class_unheard_of_nothing_is_usual() -> None:
    assert TypicalErrors().median("cpu-1") is None
