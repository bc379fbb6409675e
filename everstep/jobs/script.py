"""What `everstep run SCRIPT` is given, looked at before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everstep.errors import UsageError

_OURS = ("--dry-run", "--follow")  # that few scripts have, and that people put last


def check_script(script: str, args: Sequence[str], *, is_module: bool, is_program: bool) -> tuple[str, ...]:
    """What to tell of it; an error if it cannot be run."""
    if not is_module and not is_program:
        if Path(script).suffix in (".yaml", ".yml"):
            raise UsageError(f"{script} is no script", hint=f"a job file is run with -f: everstep run -f {script}")
        if not Path(script).exists():
            raise UsageError(
                f"there is no {script} in {Path.cwd()}",
                hint="give the script's path; a module's name goes with -m, another program with --no-python",
            )
    return tuple(
        f"{word} stands after the script, so it is the script's; options of everstep stand before it"
        for word in args
        if word in _OURS
    )
