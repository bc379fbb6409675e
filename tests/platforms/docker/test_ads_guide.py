"""The developer guide of ADS, followed from its first step to its last with its own files: on this machine, and in
containers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from everstep.platforms.docker import compose
from lab.command import everstep
from lab.docker.engine import ROOT, compose_up, docker, job_here, leftovers, mounts
from lab.seeds import snippet

STANDIN = {
    "PYTHONPATH": f"{ROOT / 'tests' / 'examples' / 'standin'}:{ROOT}",
    "STANDIN_PICTURES": "96",
    "OMP_NUM_THREADS": "1",
}
SEED_IMAGE = {"IMAGE_NAME": "everstep-lab/ads-guide", "TAG": "7"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return begin(tmp_path / "guide")


def begin(folder: Path) -> Path:
    """As the guide's first lines have it: the user's files, and what `init` adds to them."""
    folder.mkdir()
    script = snippet(2, "import torchvision")
    (folder / "train.py").write_text(script)
    (folder / "train.yaml").write_text(snippet(2, "kind: distributed"))
    (folder / "docker-compose.yaml").write_text(snippet(2, "network_mode: host"))
    done = everstep("init", "--framework", "pytorch", "--platform", "oci", folder=folder)
    assert "train.py exists already, with other content" in done.stderr
    artifacts = folder / "oci_dist_training_artifacts" / "pytorch" / "v1"
    expected = {"Dockerfile", "environment.yaml", "install.py", "pytorch_cluster.py", "README.md", "run.py", "run.sh"}
    assert {path.name for path in artifacts.iterdir()} == expected
    assert (folder / "train.py").read_text() == script
    return folder


@pytest.fixture(scope="module")
def image(engine: Mapping[str, str], python_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = begin(tmp_path_factory.mktemp("image") / "guide")
    wanted = folder / "oci_dist_training_artifacts" / "pytorch" / "v1" / "environment.yaml"
    wanted.write_text(wanted.read_text().replace("      - ocifs\n", ""))  # half a gigabyte, and no index to get it from
    built = everstep("build", "--build-arg", f"BASE={python_base}", folder=folder, **engine, **SEED_IMAGE)
    assert built.returncode == 0, built.stderr
    yield built.stdout.strip()
    docker(engine, "image", "rm", built.stdout.strip())


def test_its_compose_file_runs_as_it_is(engine: Mapping[str, str], folder: Path, image: str) -> None:
    text = (folder / "docker-compose.yaml").read_text()
    if compose() == ["docker-compose"]:  # 1.29 refuses what 2 ignores: ports of a container that has the host's
        text = re.sub(r"^    ports:\n      - .*\n?", "", text, flags=re.MULTILINE)
    (folder / "docker-compose.yaml").write_text(text)
    lab = {"volumes": mounts(), "environment": STANDIN}
    (folder / "lab.yaml").write_text(yaml.safe_dump({"services": dict.fromkeys(yaml.safe_load(text)["services"], lab)}))
    outer = {**engine, **SEED_IMAGE, "WORK_DIR": "/work_dir", "HOME": str(folder)}

    code, said = compose_up(outer, folder, "ads-guide", folder / "docker-compose.yaml", folder / "lab.yaml")

    assert code == 0, said
    _assert_trained(said)
    config = yaml.safe_load((folder / "work_dir" / "Undefined" / "MAIN_config.json").read_text())
    assert config["MASTER_ADDR"] in config["coordinator"]


@pytest.mark.parametrize("platform", ["local", "compose"])
def test_its_job_file_is_shown_run_watched_and_looked_at(
    platform: str, engine: Mapping[str, str], folder: Path, image: str
) -> None:
    outer = {**engine, **STANDIN, "EVERSTEP_HOME": str(folder / "home")}
    output = f"--set=args.3={folder / 'outputs' if platform == 'local' else '/tmp/outputs'}"
    raw = yaml.safe_dump(job_here()["platform"]["compose"]["raw"], default_flow_style=True, width=10_000).strip()
    here = [f"--set=platform.compose.raw={raw}", f"--set=image={image}"] if platform == "compose" else []
    words = ["run", "-f", "train.yaml", "--platform", platform, output, *here]
    variables = [f"--set=env.{name}={value}" for name, value in STANDIN.items()]

    shown = everstep(*words, *variables, "--dry-run", folder=folder, **outer)
    assert shown.returncode == 0, shown.stderr
    assert "train.py" in shown.stdout
    submitted = everstep(*words, *variables, folder=folder, **outer)
    assert submitted.returncode == 0, submitted.stderr
    (folder / "info.yaml").write_text(submitted.stdout)
    info = yaml.safe_load(submitted.stdout)
    (main_id,) = info["mainJobRunId"].values()
    assert len(info["otherJobRunIds"]) == 2

    watched = everstep("watch", main_id, folder=folder, **outer)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    _assert_trained(watched.stdout)
    config = everstep("show-config", "-f", "info.yaml", folder=folder, **outer)
    assert yaml.safe_load(config.stdout)["job"]["platform"]["oci"]["main_name"] == "PyTorch-Distributed-main"
    assert everstep("cancel", info["jobId"], folder=folder, **outer).returncode == 0
    assert leftovers(engine, info["everstep"]["id"]) == []


def _assert_trained(said: str) -> None:
    for rank in range(3):
        assert f"Rank {rank}: Finished Training" in said
    assert said.count("Accuracy of the network on the 10000 test images: ") == 1
