"""A small PBS of one machine."""
