"""`python -m everstep.launch.torch_distributed [OPTIONS] SCRIPT [ARGS]…`: Determined's launcher, here `everstep run`.

Options are those of torchrun, or none. Determined's scripts have `python3` before the script, and may have `--`
before that. Inside a job, whose launcher has started this process already, it becomes the script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from everstep import env
from everstep.errors import EverstepError
from everstep.job_file.entrypoint import Entrypoint, entry_of, without_launcher

_NAME = "everstep.launch.torch_distributed"


def command_of(words: Sequence[str], *, is_worker: bool) -> list[str]:
    """The command that this one means."""
    launch = without_launcher(("python3", "-m", _NAME, *words))
    entry = entry_of(launch.words)
    if is_worker:
        return _of_worker(entry)
    kind = ["--module"] if entry.is_module else ["--no-python"] if entry.is_program else []
    given = [word for name, value in launch.options.items() for word in ((name, value) if value else (name,))]
    return [sys.executable, "-m", "everstep", "run", *given, *kind, entry.script, *entry.args]


def _of_worker(entry: Entrypoint) -> list[str]:
    if entry.is_program:
        return [entry.script, *entry.args]
    return [sys.executable, *(["-m"] if entry.is_module else []), entry.script, *entry.args]


def main() -> None:
    try:
        command = command_of(sys.argv[1:], is_worker=bool(env.worker()))
    except EverstepError as error:
        sys.stderr.write(f"everstep: {error}\n")
        sys.exit(2)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
