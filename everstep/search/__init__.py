"""Search over hyperparameters: spaces, searchers, previews. Pure: no clock, no files, no torch, no shared state."""
