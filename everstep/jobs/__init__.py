"""Submitted jobs: what each command does, and what runs on the nodes."""
