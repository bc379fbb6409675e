"""Experiments: states, trials, searches as folds over events, and the records of checkpoints."""
