"""The clairvoyant bound on what any policy can reach, and the capacity of devices."""
