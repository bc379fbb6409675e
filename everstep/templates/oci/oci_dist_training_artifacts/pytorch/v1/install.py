"""Install what environment.yaml lists: by conda if the base image has it, else its pip section by pip.

Wheels beside the file are installed too. Needs Python alone."""

import re
import shutil
import subprocess
import sys
from pathlib import Path


def pip_section(text: str) -> list[str]:
    """The items below `- pip:`, which are indented further than it is."""
    found: list[str] = []
    indent = None
    for line in text.splitlines():
        bare = re.sub(r"(^|\s)#.*", "", line).rstrip()
        depth = len(bare) - len(bare.lstrip())
        if indent is None:
            indent = depth if bare.strip() == "- pip:" else None
        elif bare and (depth <= indent or not bare.lstrip().startswith("- ")):
            break
        elif bare:
            found.append(bare.strip()[2:].strip().strip("'\""))
    return found


def main(file: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir"]
    wheels = [str(path) for path in sorted(file.parent.glob("*.whl"))]
    if shutil.which("conda"):
        if wheels:  # before conda looks for it in the package index
            subprocess.run([*pip, *wheels], check=True)
        subprocess.run(["conda", "env", "update", "--quiet", "--name", "base", "--file", str(file)], check=True)
    else:
        subprocess.run([*pip, *wheels, *pip_section(file.read_text())], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
