"""Measuring placements, alone and in pairs; measurements in the store and as tables."""
