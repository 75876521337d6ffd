"""The cluster: start, stop, deploy and upgrade on Ray."""
