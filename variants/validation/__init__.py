"""Validation sets: labelled items on which accuracy is measured, whatever they are kept in."""

from modelless.variants.validation.opening import open_validation_set
from modelless.variants.validation.validation_set import Batch, Item, ValidationSet

__all__ = ["Batch", "Item", "ValidationSet", "open_validation_set"]
