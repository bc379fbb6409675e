"""A Trainer's trial on a real Kubernetes, with its checkpoints in a bucket: what is left when all its pods are gone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from everstep.addresses import address_towards
from lab import s3
from lab.command import run, until
from lab.kubernetes.cluster import Lab
from lab.kubernetes.story import Story

SCRIPT = Path(__file__).parent / "scripts" / "sums_trial.py"
OUTSIDE = """
import sys
from everstep import pytorch
from everstep.errors import NoCheckpoint
from everstep.experimental import client

uuid, folder, *uri = sys.argv[1:]
try:
    path = client.get_checkpoint(uuid, uri=uri[0] if uri else None).download(folder)
except NoCheckpoint as error:
    sys.exit(f"{error.code}: {error}")
print(pytorch.load_trial_from_checkpoint_path(path).digest())
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def storage(lab: Lab) -> Iterator[Mapping[str, str]]:
    """The variables of an S3 server that pods reach."""
    if not s3.is_installed():
        pytest.skip("needs moto and s3fs")
    here = address_towards(lab.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"))
    with s3.serving_s3(here) as port:
        yield s3.variables(f"http://{here}:{port}")


@pytest.fixture
def story(lab: Lab, storage: Mapping[str, str], tmp_path: Path) -> Iterator[Story]:
    for name in ("data", "work"):
        (tmp_path / name).mkdir()
    job = {"entrypoint": [SCRIPT.name], "nodes": 2, "hyperparameters": {"global_batch_size": 4, "lr": 0.01}}
    job["secrets"] = {"AWS_SECRET_ACCESS_KEY": "env:AWS_SECRET_ACCESS_KEY"}
    (tmp_path / "work" / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
    (tmp_path / "work" / "job.yaml").write_text(yaml.safe_dump(job))
    told = {name: value for name, value in storage.items() if name not in job["secrets"]}
    keys = {"checkpoint": {"uri": f"s3://{s3.new_bucket(storage)}/runs"}, "env": told}
    story = Story(lab, tmp_path / "work", tmp_path / "data", name="sums", keys=keys)
    story.env |= storage
    yield story
    story.close()


def test_a_trial_loses_a_pod_and_its_checkpoint_is_fetched_by_its_uuid_when_all_are_gone(
    story: Story, storage: Mapping[str, str], tmp_path: Path
) -> None:
    story.run("job.yaml")
    story.wait("step.committed", size=2, step=lambda step: step >= 25)  # the first checkpoint is known by now
    before = story.generation()
    story.lab.kubectl("delete", "pod", story.pods("worker")[0]["metadata"]["name"], "--wait=false")
    story.wait_going_on(size=2, after=before)
    story.hurry()
    said = story.finish()
    story.type("cancel", story.id)  # removes what is left of it
    until(lambda: not story.lab.look("pods", "app.kubernetes.io/instance=sums"), lambda: "pods are left")

    exits = [(each["worker"], each["exit_code"]) for each in story.events("worker.exited")]
    assert len(exits) == 3 and {code for _, code in exits} == {0}, exits
    begun, saved = re.findall(r"begins with (\S+)", said), re.findall(r"checkpoint (\S+) of batch (\d+): (\S+)", said)
    assert len(begun) == 3 and begun.count("None") == 2  # the pod that came later was told by the coordinator
    assert {each for each in begun if each != "None"} <= {uuid for uuid, *_ in saved}
    (digest,) = set(re.findall(r"digest (\w+)", said))
    uuid, step, place = saved[-1]
    assert (int(step), place.startswith("s3://")) == (300, True)

    def fetch(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / f"got-{home.name}"
        given = {**storage, "EVERSTEP_HOME": str(home)}
        return run(sys.executable, "-c", OUTSIDE, uuid, folder, *words, folder=tmp_path, **given)

    fetched = fetch(Path(story.env["EVERSTEP_HOME"]))  # it has the job that was submitted, and nothing of its pods
    assert fetched.stdout.split() == [digest], fetched.stderr
    assert (tmp_path / "got-home" / "code" / SCRIPT.name).read_bytes() == SCRIPT.read_bytes()
    assert fetch(tmp_path / "another").stderr.startswith("checkpoint-uuid-unknown")
    assert fetch(tmp_path / "another", story.keys["checkpoint"]["uri"]).stdout.split() == [digest]
