"""As much of OpenCV as a tutorial needs: it reads colour images of the PPM format."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def imread(path: str) -> np.ndarray:
    kind, size, depth, pixels = Path(path).read_bytes().split(b"\n", 3)
    assert (kind, depth) == (b"P6", b"255")
    width, height = map(int, size.split())
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)[..., ::-1]  # blue comes first
