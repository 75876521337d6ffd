"""Device facts, device classes, and how fast a device computes."""
