"""A Kubernetes of our own, compiled from Debian's sources: its scripts, and stories on it."""
