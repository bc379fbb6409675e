"""Bring the page's third-party scripts to everstep/page/static/vendor, as package-lock.json has them.

    python tools/page_vendor.py            fetch with npm if they are missing or the lock file has changed
    python tools/page_vendor.py --check    only say whether they are there

npm compares each package with its hash in the lock file; which registry it asks is its own configuration. Browsers
know no bare names such as "preact", so imports are rewritten to files next to each other. Nothing is bundled, and
nothing of it is committed: the wheel contains these files, with their licenses."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENDOR = ROOT / "everstep" / "page" / "static" / "vendor"
LOCK = ROOT / "package-lock.json"
STAMP = "lock.txt"
LONGEST_S = 300

MODULES = {  # the name that scripts import: (file in the package, its name here)
    "preact": ("preact/dist/preact.mjs", "preact.js"),
    "preact/hooks": ("preact/hooks/dist/hooks.mjs", "hooks.js"),
    "@preact/signals-core": ("@preact/signals-core/dist/signals-core.mjs", "signals-core.js"),
    "@preact/signals": ("@preact/signals/dist/signals.mjs", "signals.js"),
    "htm": ("htm/dist/htm.mjs", "htm.js"),
}
SCRIPTS = {"uPlot": ("uplot/dist/uPlot.iife.min.js", "uplot.js")}  # a global name: the smallest form has no exports
STYLES = {"uplot/dist/uPlot.min.css": "uplot.css"}
PACKAGES = ("preact", "@preact/signals", "@preact/signals-core", "htm", "uplot")

_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*)(["'])([^"']+)\2""")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


def is_fresh() -> bool:
    try:
        return (VENDOR / STAMP).read_text() == _stamp()
    except OSError:
        return False


def _stamp() -> str:
    """Of what decides about the files: the lock file and this one."""
    return hashlib.sha256(LOCK.read_bytes() + Path(__file__).read_bytes()).hexdigest() + "\n"


def fetch() -> None:
    """All of it, or nothing changes."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(
            "npm is missing: the page's scripts cannot be fetched\n  HINT: install Node.js with npm, then make setup"
        )
    with tempfile.TemporaryDirectory(prefix="everstep-page-") as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(ROOT / name, folder)
        command = [npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        try:
            is_good = subprocess.run(command, cwd=folder, timeout=LONGEST_S).returncode == 0
        except subprocess.TimeoutExpired:
            is_good = False
        if not is_good:
            sys.exit("npm ci failed: the page's scripts cannot be fetched\n  HINT: can npm reach its registry?")
        copy(Path(folder) / "node_modules", VENDOR)


def copy(modules: Path, vendor: Path) -> None:
    """From installed packages to files that a browser can run."""
    made = Path(tempfile.mkdtemp(prefix=".vendor-", dir=vendor.parent))
    try:
        _fill(made, modules)
        shutil.rmtree(vendor, ignore_errors=True)
        made.rename(vendor)
    except BaseException:  # beside `vendor`, it would be packed and served
        shutil.rmtree(made, ignore_errors=True)
        raise


def _fill(made: Path, modules: Path) -> None:
    for path, name in MODULES.values():
        (made / name).write_text(_relative((modules / path).read_text()))
    for global_name, (path, name) in SCRIPTS.items():
        text = _SOURCE_MAP.sub("", (modules / path).read_text()).rstrip()
        (made / name).write_text(f"{text}\nexport default {global_name};\n")
    for path, name in STYLES.items():
        (made / name).write_text((modules / path).read_text())
    (made / "LICENSES.txt").write_text("\n\n".join(_license(modules / package, package) for package in PACKAGES))
    (made / STAMP).write_text(_stamp())
    made.chmod(0o755)


def _relative(text: str) -> str:
    def renamed(found: re.Match[str]) -> str:
        if found[3] not in MODULES:
            sys.exit(f"a script imports {found[3]!r}, which is not one of {', '.join(MODULES)}")
        return f"{found[1]}{found[2]}./{MODULES[found[3]][1]}{found[2]}"

    return _SOURCE_MAP.sub("", _IMPORT.sub(renamed, text)).rstrip() + "\n"


def _license(package: Path, name: str) -> str:
    found = next((each for each in sorted(package.iterdir()) if each.name.upper().startswith("LICEN")), None)
    return f"{name}\n\n{found.read_text().strip() if found else 'see its package.json'}"


def main() -> None:
    if "--check" in sys.argv:
        sys.exit(0 if is_fresh() else "the page's scripts are missing or outdated\n  HINT: make setup")
    if not is_fresh():
        fetch()


if __name__ == "__main__":
    main()
