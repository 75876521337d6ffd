"""The two sans-I/O cores: dispatch (the way of a query) and plan (the way of a decision).

Time and randomness come in as arguments, effects go out as values. The live cluster, the simulator
and the unit tests drive the very same objects.
"""
