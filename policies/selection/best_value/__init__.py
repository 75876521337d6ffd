"""The selection policy ``best-value``."""
