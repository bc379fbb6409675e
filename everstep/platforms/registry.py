"""The platform of a name, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from everstep.job_file.platform_options import check_platform
from everstep.platforms.base import Platform

_CLASSES = {
    "local": ("everstep.platforms.local", "LocalPlatform"),
    "compose": ("everstep.platforms.compose", "ComposePlatform"),
    "kubernetes": ("everstep.platforms.kubernetes", "KubernetesPlatform"),
    "slurm": ("everstep.platforms.slurm", "SlurmPlatform"),
    "pbs": ("everstep.platforms.pbs", "PbsPlatform"),
    "oci": ("everstep.platforms.oci", "OciPlatform"),
}


def platform_of(name: str) -> Platform:
    check_platform(name)
    module, kind = _CLASSES[name]
    return cast(Platform, getattr(import_module(module), kind)())
