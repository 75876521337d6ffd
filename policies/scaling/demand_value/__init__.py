"""The scaling policy ``demand-value``."""
