"""Slots of machines: which trial gets which slot, and how that ends."""
