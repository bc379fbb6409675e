"""Samples: their order, who gets which, and reading them ahead."""
