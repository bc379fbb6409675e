"""Which commands build and push an image."""

from __future__ import annotations

import pytest

from everstep.job.schema import Job
from everstep.platforms.image import image_name, plan_build


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
