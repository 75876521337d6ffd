"""The control machine: what to load where, how many workers, which versions. No I/O, no clock."""
