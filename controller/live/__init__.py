"""The live driver: the same cores on a real Ray Serve cluster. The only folder that imports Ray."""
