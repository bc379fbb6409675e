"""Determined's launcher modules."""
