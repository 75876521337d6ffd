"""The simulator: one more driver of the cores: a virtual clock, devices made of profiles."""
