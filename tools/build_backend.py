"""How a wheel is built: setuptools, after the page's scripts were built (`page_vendor`).

Where they cannot be built, for want of npm, a registry or a disk that can be written, the wheel is built with what is
there: all but the page works, and the page says what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

sys.path.insert(0, str(Path(__file__).resolve().parent))

import page_vendor


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    try:
        page_vendor.main()
    except (SystemExit, OSError) as problem:
        print(f"everstep: the page is missing or outdated in this wheel: {problem}", file=sys.stderr)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
