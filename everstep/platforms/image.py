"""How docker builds and pushes an image: name, files, arguments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.job_file.schema import Build, Job

ADS_DOCKERFILE = "oci_dist_training_artifacts/pytorch/v1/Dockerfile"
# Docker passes the value of a variable that is only named, and does not keep these in the image.
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildPlan:
    image: str  # NAME:TAG
    build: tuple[str, ...]
    push: tuple[str, ...] | None


def plan_build(
    job: Job,
    *,
    environ: Mapping[str, str],
    name: str | None = None,
    tag: str | None = None,
    dockerfile: str | None = None,
    arguments: Sequence[str] = (),
    pushes: bool = False,
) -> BuildPlan:
    """Arguments override the job file."""
    build = job.build or Build()
    image = image_name(job, name=name, tag=tag)
    named = [each for name in _PROXIES for each in (name, name.upper()) if each in environ]
    passed = [*named, *(f"{key}={value}" for key, value in build.args.items()), *arguments]
    return BuildPlan(
        image=image,
        build=(
            "docker",
            "build",
            "--force-rm",  # a step that fails leaves no container behind
            *(part for argument in passed for part in ("--build-arg", argument)),
            *("--tag", image, "--file", dockerfile or build.dockerfile, build.context),
        ),
        push=("docker", "push", image) if pushes or build.push else None,
    )


def image_name(job: Job, *, name: str | None = None, tag: str | None = None) -> str:
    """NAME:TAG. A registry may have a port: text after the last colon is a tag only if no slash follows it."""
    given = name or job.image or job.slug
    base, colon, last = given.rpartition(":")
    if not colon or "/" in last:
        return f"{given}:{tag or 'latest'}"
    return f"{base}:{tag or last}"


def found_dockerfile(job: Job, folder: Path) -> str | None:
    """ADS's layout has its own path; None: the job file's."""
    is_elsewhere = job.build is None and not (folder / "Dockerfile").exists() and (folder / ADS_DOCKERFILE).exists()
    return ADS_DOCKERFILE if is_elsewhere else None
