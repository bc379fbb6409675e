"""The Python of ElasticDL's PyTorch tutorial runs after changing its imports.

It shows no import lines, leaves out what is not its subject (`...`), and does not say where `args`, the images and the
loader come from: that is all that is added here."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lab.command import ROOT, Command
from lab.seeds import snippet

STANDIN = ROOT / "tests" / "examples" / "standin"
RECORDS, EPOCHS = 640, 2

BEFORE = """
import argparse
import sys
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from everstep import PyTorchAllReduceController, RecordIndexService

args = argparse.Namespace(batch_size=16, num_epochs=2)
paths = sorted(Path(sys.argv[1]).glob("*.ppm"))
train_data = argparse.Namespace(imgs=[(str(path), int(path.stem[-1])) for path in paths])
"""
BETWEEN = """
train_loader = DataLoader(train_dataset, batch_size=args.batch_size, num_workers=int(sys.argv[2]))
"""
LEFT_OUT = {
    "model = ...": "model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 10), nn.LogSoftmax(dim=1))",
    "optimizer = ...": "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)",
}
AFTER = """
print(f"the last loss is {loss.item():.3f}")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    dataset, training = snippet(1, "class ElasticDataset"), snippet(1, "PyTorchAllReduceController(")
    for line, instead in LEFT_OUT.items():
        assert training.count(line) == 1
        training = training.replace(line, instead)
    path = tmp_path / "tutorial.py"
    path.write_text(BEFORE + dataset + BETWEEN + training + AFTER)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Files of colour images, named for their place and their label."""
    folder = tmp_path / "images"
    folder.mkdir()
    with np.load(ROOT / "examples" / "data" / "fashion-mnist-8k.npz") as arrays:
        grey, labels = arrays["train_images"][:RECORDS], arrays["train_labels"][:RECORDS]
    for number, (image, label) in enumerate(zip(grey, labels, strict=True)):
        pixels = np.repeat(image[..., None], 3, axis=2).tobytes()
        (folder / f"{number:04}-{label}.ppm").write_bytes(b"P6\n28 28\n255\n" + pixels)
    return folder


@pytest.mark.parametrize("loaders", [0, 2])
def test_it_trains_on_every_image_once_per_epoch(
    loaders: int, script: Path, images: Path, everstep_run: Callable[..., Command], tmp_path: Path
) -> None:
    given = {"PYTHONPATH": f"{STANDIN}:{ROOT}"}
    said = everstep_run("--nproc-per-node=2", script, images, loaders, **given).finish()

    losses = [float(loss) for loss in re.findall(r"the last loss is ([\d.]+)", said)]
    assert len(losses) == 2
    assert min(losses) < 2.0  # from ln 10 = 2.3; each is of one small batch, and which one is a matter of time
    (events,) = tmp_path.glob("runs/*/events.jsonl")
    told = [json.loads(line) for line in events.read_text().splitlines()]
    steps = {event["step"]: event["parts"] for event in told if event["event"] == "samples.used"}
    used = Counter(p for parts in steps.values() for start, count in parts for p in range(start, start + count))
    assert used == Counter(range(RECORDS * EPOCHS))
