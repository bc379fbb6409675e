"""`everstep init`, `everstep build`, `docker compose up`: a new project in containers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.command import everstep
from lab.docker.engine import IMAGE, compose_up, docker

PASSWORD = "hunter2"


def test_a_new_project_is_built_and_trains_by_docker_compose_alone(
    engine: Mapping[str, str], python_base: str, tmp_path: Path
) -> None:
    """On a base without Everstep, and without mounts: it is all in the image."""
    folder = tmp_path / "circle"
    assert everstep("init", str(folder), folder=tmp_path).returncode == 0
    proxied = {**engine, "http_proxy": f"http://me:{PASSWORD}@proxy.example:3128"}
    built = everstep("build", "--build-arg", f"BASE={python_base}", folder=folder, **proxied)
    assert (built.returncode, built.stdout) == (0, "circle:latest\n"), built.stderr
    assert not (folder / "everstep-wheels").exists()
    told = docker(engine, "image", "inspect", "circle:latest") + docker(
        engine, "history", "--no-trunc", "circle:latest"
    )
    assert PASSWORD not in told + built.stderr
    assert "train.py" in docker(engine, "run", "--rm", "circle:latest", "ls", "/code")

    code, said = compose_up(engine, folder, "circle", folder / "docker-compose.yaml")

    assert code == 0, said
    assert "with 3 workers" in said
    assert (folder / "work_dir" / "model.pt").exists()
    config = folder / "work_dir" / "Undefined" / "MAIN_config.json"
    assert config.stat().st_mode & 0o077 == 0
    assert not config.with_name("everstep.token").exists()
    docker(engine, "image", "rm", "circle:latest")


def test_an_image_that_cannot_be_built_is_told(engine: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN false\n")
    built = everstep("build", "--image", "broken", folder=tmp_path, **engine)
    assert (built.returncode, built.stdout) == (2, "")
    assert "docker build failed: exit code 1" in built.stderr
