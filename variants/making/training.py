"""Training, for makers: PyTorch, equal results each time, and the loss of soft answers.

Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015, sec. 2,
https://arxiv.org/abs/1503.02531: a network learns another's probabilities, softened by a
temperature, which say more of each input than its label would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_LEAST_PROBABILITY: Final = 1e-7  # of a class, as its logarithm is needed


def soft_loss(torch: Any, found: Any, wanted: Any, temperature: float, axis: int = 1) -> Any:
    """How far the probabilities of ``found`` are from those of ``wanted``, both softened.

    Args:
        torch: the module.
        found, wanted: logits, tensors of equal shape; the logarithms of probabilities will do.
        axis: of the classes.

    Returns:
        The mean over items of the Kullback-Leibler divergence, a tensor of one number. Its
        gradients shrink with the square of the temperature, which makes up for that.
    """
    functional = torch.nn.functional
    divergence = functional.kl_div(
        functional.log_softmax(found / temperature, axis),
        functional.log_softmax(wanted / temperature, axis),
        reduction="none",
        log_target=True,
    )
    return temperature**2 * divergence.sum(axis).mean()


def log_probabilities(probabilities: NDArray[Any]) -> NDArray[Any]:
    """Their logarithms, of the same shape; of what is next to nothing, a number still."""
    logarithms: NDArray[Any] = np.log(np.maximum(probabilities, _LEAST_PROBABILITY))
    return logarithms


@contextmanager
def deterministic(torch: Any, seed: int) -> Iterator[None]:
    """Equal sums in equal order, and equal chance."""
    threads, was_set = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was_set)
            torch.set_num_threads(threads)
