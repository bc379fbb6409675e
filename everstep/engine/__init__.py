"""One worker between two steps: who computes what, how gradients are summed, and what happens when a peer dies.

Needs torch. Knows nothing of the doors above it (native loop, controller, trial)."""
