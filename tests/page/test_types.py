"""The types in the page's comments hold: TypeScript reads the modules as esbuild does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lab.required import missing

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "everstep" / "page" / "static"
TSC = ROOT / "node_modules" / ".bin" / "tsc"
OPTIONS = (
    "--noEmit --allowJs --checkJs --strict --skipLibCheck --target es2022 --module es2022 "
    "--moduleResolution bundler --lib es2023,dom,dom.iterable"
)


def test_the_modules_agree_with_their_types(tmp_path: Path) -> None:
    if not TSC.exists():
        missing("TypeScript", "make setup brings it with npm")
    for module in STATIC.glob("*.js"):
        shutil.copy(module, tmp_path)
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    modules = sorted(path.name for path in tmp_path.glob("*.js"))
    done = subprocess.run([TSC, *OPTIONS.split(), *modules], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_module_is_long() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in STATIC.glob("*.js")}
    assert max(lengths.values()) < 450, lengths
