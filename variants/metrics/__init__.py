"""Accuracy metrics: how good a variant's answers are, as per cent with an interval."""

from modelless.variants.metrics.metric import Metric, Score, score
from modelless.variants.metrics.names import NAMES, find_metric

__all__ = ["NAMES", "Metric", "Score", "find_metric", "score"]
