"""Compose, ToTensor and Normalize."""

import torch


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, picture):
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    """Height × width × colour from 0 to 255 becomes colour × height × width from 0 to 1."""

    def __call__(self, picture):
        return torch.from_numpy(picture).permute(2, 0, 1).float().div(255)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = (torch.tensor(each).view(-1, 1, 1) for each in (mean, std))

    def __call__(self, tensor):
        return (tensor - self.mean) / self.std
