"""Stands in for torchvision where it has no build: CIFAR10 and three transforms, with torchvision's names and shapes.

The pictures are those of Fashion-MNIST: a frame makes 32 × 32 of them, and each colour is the same grey."""

from torchvision import datasets, transforms

__all__ = ["datasets", "transforms"]
