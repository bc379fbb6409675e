"""Slots of machines: which trial gets which, and what became of it."""
