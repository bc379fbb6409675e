"""The standing agent of a node in a pool, the trials that it runs, and the local service."""
