"""The coordinator, as its callers see it."""
