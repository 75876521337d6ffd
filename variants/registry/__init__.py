"""The registry of tasks, models, variants and versions."""
