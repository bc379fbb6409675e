"""A Slurm whose nodes are network namespaces."""
