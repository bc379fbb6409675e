"""Shared parts of the tests: machines to hurt, commands to type, systems to submit to.

Tests import from here, never from each other."""
