"""Experiments: their states, trials, searches (folds over events), and checkpoint records."""
