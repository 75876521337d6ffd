"""Helpers that all packages share: errors, files, statistics."""
