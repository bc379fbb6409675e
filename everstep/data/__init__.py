"""Which samples a worker reads, and in which order: the same order for every number of workers."""
