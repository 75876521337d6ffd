"""The cost model: measured, learned, and corrected by what is observed."""
