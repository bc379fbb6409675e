"""Everstep trains PyTorch models on machines that come and go."""
