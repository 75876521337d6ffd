"""The live gateway: HTTP in, the dispatcher, remote workers, replies."""
