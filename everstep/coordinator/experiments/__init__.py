"""Experiments at the coordinator: their states, their trials, their searches."""
