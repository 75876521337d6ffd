"""What a second of each device class is worth, while demand stays as it is.

``value_price`` finds one price for all classes together, of which each has a part by its speed:
that is quick, and right in a crowd, when everything runs what is quickest. Else a class has a price
of its own. Where a slow class keeps up with the rest of the demand only with its quickest variants,
a second of the quick class, which takes queries off it, is worth far more than its own variants
tell. These prices are the duals of the linear program of which variant, on which class, serves how
much of each kind of query. (That duals are prices, ``value_price`` tells.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from modelless.policies.selection.best_value.price import Devices, Kind, latency_share, offers_of

_MOST_KINDS = 32  # of most demand; the others are taken to be like them


def prices_of_classes(
    rates: Mapping[Kind, float],
    devices: Mapping[str, Devices],
    target_utilisation: float,
    batching_share: float,
    miss_penalty: float,
) -> dict[str, float]:
    """Accuracy points that a second of each class is worth; 0 where it has time to spare.

    Args:
        rates, devices, target_utilisation, batching_share, miss_penalty: see
            ``value_price.price_of_time``.

    Returns:
        By class; empty if nothing can be served, or the solver failed.
    """
    from scipy.optimize import linprog  # takes long to import
    from scipy.sparse import csr_array

    share = latency_share(rates, devices, batching_share)
    kinds = sorted(rates, key=lambda kind: (-rates[kind], kind))[:_MOST_KINDS]
    seen = sum([rates[kind] for kind in kinds])
    scale = sum(rates.values()) / seen if seen > 0.0 else 1.0
    worths, times, rows = [], [], []
    for row, kind in enumerate(kinds):
        offers = offers_of(kind, devices, share)
        for place, name in enumerate(devices, len(kinds)):
            offer = offers.get(name)
            if offer is None:
                continue
            known = offer.item_s < math.inf
            worths.append(scale * rates[kind] * (offer.accuracy_percent[known] + miss_penalty))
            times.append(scale * rates[kind] * offer.item_s[known])
            rows.append(np.broadcast_to([[row], [place]], (2, len(times[-1]))))
    if not any(len(known) for known in worths):
        return {}
    # A column is a share of a kind; a row, a kind's whole, or a class's time.
    worth, time_s = np.concatenate(worths), np.concatenate(times)
    columns = np.arange(len(worth))
    entries = np.concatenate([np.ones(len(worth)), time_s])
    at = np.concatenate(rows, axis=1).ravel(), np.concatenate([columns, columns])
    matrix = csr_array((entries, at), shape=(len(kinds) + len(devices), len(worth)))
    room = [target_utilisation * device.workers for device in devices.values()]
    answer = linprog(-worth, A_ub=matrix, b_ub=[1.0] * len(kinds) + room, method="highs-ds")
    if not answer.success:
        return {}
    return dict(zip(devices, (-answer.ineqlin.marginals[len(kinds) :]).tolist(), strict=True))


def scarcity(utilisation: float) -> float:
    """0 while a class has time to spare, 1 once it has none.

    That goes by what its workers do: demand alone does not tell what is kept from it, by whom.
    """
    return min(max((utilisation - 0.7) / 0.2, 0.0), 1.0)
