"""Models: checkpoints that are registered as versions, and kept."""
