"""The live worker: the device in this process, its threads, and pool replicas."""
