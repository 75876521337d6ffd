"""Worlds and recordings in the simulator: run, compared, tuned, and what would have been."""
