"""Is this machine, and are these nodes, fit to train? Each check says ok, warning or error, and what to do.

Facts are gathered at the edge (facts.py) and judged by pure functions (here.py, nodes.py).
Links between nodes are measured by a worker (measuring_worker.py). Knows nothing of torch itself."""
