"""What two systems' users bring along runs on a real Kubernetes, while pods are deleted and a node is killed."""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.command import run
from lab.kubernetes.cluster import REPOSITORY, Lab
from lab.kubernetes.story import Story, disturb
from lab.seeds import snippet

SCRIPTS = Path(__file__).parent / "scripts"
NUM_IMAGES, NUM_RECORDS = 160, 24_000

pytestmark = pytest.mark.slow


@pytest.fixture
def tell(lab: Lab, tmp_path: Path) -> Iterator[Callable[[str], Story]]:
    stories: list[Story] = []

    def tell(name: str) -> Story:
        data = tmp_path / "data"
        data.mkdir()
        (tmp_path / "work").mkdir()
        stories.append(Story(lab, tmp_path / "work", data, name=name))
        return stories[-1]

    yield tell
    for story in stories:
        story.close()
    if lab.is_ours:
        lab.revive_nodes()


def test_the_manifest_of_an_elasticjob_ends_with_the_weights_of_an_undisturbed_run(
    tell: Callable[[str], Story], tmp_path: Path
) -> None:
    story = tell("mnist")
    _write_images(story.data / "mnist_png")
    script = story.folder / "model_zoo" / "pytorch" / "mnist_cnn.py"
    script.parent.mkdir(parents=True)
    script.write_bytes((SCRIPTS / "mnist_cnn.py").read_bytes())
    (story.folder / "elasticjob.yaml").write_text(snippet(0, "replicaSpecs"))

    story.run("elasticjob.yaml")
    disturb(story)
    story.hurry()
    said = story.finish()

    words = ["--training_data", "training/elastic_ds.txt", "--validation_data", "testing/elastic_ds.txt"]
    undisturbed = run(sys.executable, script, *words, folder=story.data / "mnist_png")
    assert set(re.findall(r"accuracy .*", said)) == set(undisturbed.stdout.splitlines())


def test_a_command_of_elasticdl_trains_on_each_record_once(tell: Callable[[str], Story], tmp_path: Path) -> None:
    story = tell("test-mnist-allreduce")
    (story.data / "mnist_png").mkdir()
    _write_tutorial(story.folder)
    command = snippet(1, "elasticdl train")
    words = shlex.split(command.replace("{mnist_data_dir}", str(story.data)).replace("\\\n", " "))

    (story.folder / "job.yaml").write_text(story.type("convert", "--", *words))
    story.run("job.yaml")
    disturb(story)
    story.hurry()
    story.finish()

    used = {event["step"]: event["parts"] for event in story.events("samples.used")}
    records = Counter(p for parts in used.values() for start, count in parts for p in range(start, start + count))
    assert records == Counter(range(NUM_RECORDS))


def _write_images(folder: Path) -> None:
    with np.load(REPOSITORY / "examples" / "data" / "fashion-mnist-8k.npz") as arrays:
        for part, theirs in (("training", "train"), ("testing", "test")):
            (folder / part).mkdir(parents=True)
            images, labels = arrays[f"{theirs}_images"], arrays[f"{theirs}_labels"]
            lines = []
            for number in range(NUM_IMAGES):
                np.save(folder / part / f"{number}.npy", images[number])
                lines.append(f"{number}.npy {labels[number]}\n")
            (folder / part / "elastic_ds.txt").write_text("".join(lines))


def _write_tutorial(folder: Path) -> None:
    package: Any = folder / "model_zoo" / "mnist"
    package.mkdir(parents=True)
    (package / "mnist_pytorch.py").write_bytes((SCRIPTS / "mnist_pytorch.py").read_bytes())
