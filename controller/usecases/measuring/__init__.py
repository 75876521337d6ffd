"""What placements cost: measured, predicted from other devices, and drawn."""
