"""Which commands build and push an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.cli.project import BuildOptions, build_image
from everstep.errors import PermanentError, UsageError
from everstep.job_file.schema import Job
from everstep.platforms.image import image_name, plan_build
from lab.docker.engine import _answers
from lab.refused import refused


def job(**keys: object) -> Job:
    return Job.model_validate({"entrypoint": "train.py", **keys})


@pytest.mark.parametrize(
    ("image", "name", "tag", "expected"),
    [
        ("", None, None, "train:latest"),
        ("a/b:3", None, None, "a/b:3"),
        ("a/b:3", None, "4", "a/b:4"),
        ("a/b:3", "r.example:5000/c", None, "r.example:5000/c:latest"),
        ("", "r.example:5000/c:1", "2", "r.example:5000/c:2"),
    ],
)
def test_the_name_and_the_tag(image: str, name: str | None, tag: str | None, expected: str) -> None:
    assert image_name(job(image=image), name=name, tag=tag) == expected


def test_proxy_settings_are_passed_by_name_alone() -> None:
    plan = plan_build(job(), environ={"https_proxy": "http://me:password@proxy", "NO_PROXY": "x"})
    assert plan.build[3:7] == ("--build-arg", "https_proxy", "--build-arg", "NO_PROXY")
    assert "password" not in " ".join(plan.build)


def test_the_build_block_says_how() -> None:
    described = job(build={"dockerfile": "docker/D", "context": "src", "args": {"BASE": "debian:12"}, "push": True})
    plan = plan_build(described, environ={}, arguments=["BASE=debian:13"])
    arguments = "--build-arg BASE=debian:12 --build-arg BASE=debian:13"
    assert " ".join(plan.build) == f"docker build --force-rm {arguments} --tag train:latest --file docker/D src"
    assert plan.push == ("docker", "push", "train:latest")


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_image_is_built_then_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_refused: bool
) -> None:
    """By a docker that records its arguments."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\necho "$1 $2" >> {tmp_path}/told\n[ "$1" != push ] || exit {int(is_refused)}\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    asked = BuildOptions(image="r.example/a", tag="1", push=True)
    if is_refused:
        with pytest.raises(PermanentError, match="docker push failed"):
            build_image(asked)
    else:
        build_image(asked)
        assert capfd.readouterr().out == "r.example/a:1\n"
    assert (tmp_path / "told").read_text() == "build --force-rm\npush r.example/a:1\n"


def test_a_command_of_the_image_that_is_missing_is_not_taken_for_a_missing_docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker ends with the exit code of the command that failed: 127 where that was not found."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 127\n")
    docker.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with refused("docker-build-failed", PermanentError, match="127"):
        build_image(BuildOptions(image="a"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with refused("docker-missing", UsageError):
        build_image(BuildOptions(image="a"))


def test_without_docker_its_tests_are_skipped_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("EVERSTEP_REQUIRE_LABS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no docker command to test with: apt-get install"):
        _answers({})
