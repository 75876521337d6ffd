"""Use cases of the registry: add, make, validate, promote and remove tasks, models and variants."""
