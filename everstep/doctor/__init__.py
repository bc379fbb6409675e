"""Is this machine, and are these nodes, fit to train? Each check says ok, warning or error, and what to do.

Facts are gathered at the edge (facts.py) and judged by pure functions (here.py, nodes.py, gpus.py).
A worker on each node measures the links between nodes (measuring_worker.py); a process for each GPU measures the links
between GPUs (gpu_worker.py). Knows nothing about torch itself."""
