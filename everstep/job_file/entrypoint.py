"""The words of an entrypoint, and the options of a launcher in front of it (torchrun, dlrover-run, …). Pure.

Everstep is the launcher: another one in an entrypoint is removed, and its options become keys of the job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from everstep.errors import UsageError

HARNESS = "everstep.pytorch.harness"  # trains a class
_PYTHON = re.compile(r"(?:\S*/)?python(?:\d+(?:\.\d+)?)?")
QUOTED = r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\."
_RAW_WORD = re.compile(rf"(?:{QUOTED}|[^\s'\"\\])+", re.DOTALL)
_PIECE = re.compile(rf"{QUOTED}|.", re.DOTALL)
_SHELL_WORDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1"})
_LAUNCHERS = ("torchrun", "dlrover-run", "everstep run")
_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "dlrover.trainer.torch.main",
    "determined.launch.torch_distributed",
    "everstep.launch.torch_distributed",
)
_FOREIGN_LAUNCHERS = ("horovodrun", "mpirun", "mpiexec", "deepspeed", "accelerate", "srun")
_FOREIGN_MODULES = ("determined.launch.horovod", "determined.launch.deepspeed", "determined.launch.tensorflow")
# Of torchrun and of those made after it; all others take a value.
_FLAGS = {
    *("--standalone", "--module", "-m", "--no-python", "--run-path", "--virtual-local-rank", "--auto-config"),
    *("--auto-tunning", "--network-check", "--exclude-straggler", "--save-at-breakpoint", "--numa-affinity"),
    *("--comm-perf-test", "--check", "--quiet", "-q", "--use-env"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrypoint:
    """As `everstep run` takes it."""

    script: str  # or the module's name, or the program
    args: tuple[str, ...] = ()
    is_module: bool = False
    is_program: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A command line without its launcher."""

    words: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)  # of the launcher: "--nnodes": "1:4"; a flag's is ""
    launcher: str | None = None


def raw_words(text: str) -> list[str]:
    """As they are written, with their quotes."""
    return _RAW_WORD.findall(text)


def split(text: str) -> tuple[str, ...]:
    """Split as a shell does; refuse what only a shell can do."""
    text = text.replace("\\\n", " ")  # a continued line
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        message = f"{text!r}: {str(error).lower()}"
        raise UsageError(message, hint="or give a list: [train.py, --title, it's]", code="entrypoint-quotes") from None
    for word in raw_words(text):
        if word in _SHELL_WORDS or word.endswith(";") or re.search(r"\$[A-Za-z_({]", _bare(word)):
            raise UsageError(
                f"{word} needs a shell; the entrypoint runs without one",
                hint=f"quote it to pass it as is: '{word}'; put commands before training into `setup`; "
                'for a shell in each worker use [bash, -c, "…"]',
                code="entrypoint-needs-shell",
            )
    return words


def needs_shell(text: str) -> bool:
    """Whether it has more than words and quotes."""
    return bool(re.search(r"[|&;<>()$`*?\n]", _bare(text)))


def _bare(text: str) -> str:
    """The part that a shell interprets: all outside quotes, and variables inside double quotes."""
    bare = ""
    for piece in _PIECE.findall(text):
        if piece[0] == '"':
            bare += "".join(re.findall(r"[$`]\w?", piece))
        elif piece[0] not in "'\\":
            bare += piece
    return bare


def entry_of(words: Sequence[str], args: Sequence[str] = ()) -> Entrypoint:
    """A script (train.py), a module (-m pkg.train), both with or without python before them, or a program."""
    words = without_python(words)
    if words[0] == "-m" and len(words) > 1:
        return Entrypoint(script=words[1], args=(*words[2:], *args), is_module=True)
    is_program = not words[0].endswith(".py")
    return Entrypoint(script=words[0], args=(*words[1:], *args), is_program=is_program)


def is_class(word: str) -> bool:
    """Determined's other form of an entrypoint: the class of a trial, model_def:MyTrial."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", word) is not None


def class_words(word: str) -> tuple[str, ...]:
    """What trains it."""
    return ("-m", HARNESS, word)


def without_python(words: Sequence[str]) -> tuple[str, ...]:
    """The launcher chooses the interpreter. One with options of its own is kept and run as a program."""
    if not words or not _PYTHON.fullmatch(words[0]):
        return tuple(words)
    rest = tuple(words[1:])
    while rest and rest[0] == "-u":  # output is never buffered
        rest = rest[1:]
    if rest and (rest[0].endswith(".py") or (rest[0] == "-m" and len(rest) > 1)):
        return rest
    return tuple(words)


def without_launcher(words: Sequence[str]) -> Launch:
    """The script and its arguments; the launcher's options apart. One of another kind of training is refused."""
    launcher, rest = _launcher(tuple(words))
    if launcher is None:
        return Launch(words=without_python(words))
    options: dict[str, str] = {}
    prefix: tuple[str, ...] = ()
    while rest and rest[0].startswith("-"):
        word, rest = rest[0], rest[1:]
        if word == "--":
            break
        name, equals, value = word.partition("=")
        name = "-m" if name == "--module" else name.replace("_", "-")
        if name == "-m":
            prefix = ("-m",)
        elif equals or name in _FLAGS:
            options[name] = value
        else:
            options[name], rest = (rest[0], rest[1:]) if rest else ("", ())
    if not rest:
        message = f"{launcher} starts nothing: no script after its options"
        raise UsageError(message, hint=f"{launcher} train.py", code="launcher-without-script")
    # `--no-python` and Determined's form have python before the script.
    return Launch(words=(*prefix, *without_python(rest)), options=options, launcher=launcher)


def _launcher(words: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    if not words:
        return None, words
    program = words[0].rpartition("/")[2]
    two = " ".join((program, *words[1:2]))
    if program in _LAUNCHERS:
        return program, words[1:]
    if two in _LAUNCHERS:
        return two, words[2:]
    module = words[2] if _PYTHON.fullmatch(words[0]) and words[1:2] == ("-m",) and len(words) > 2 else None
    if module in _LAUNCHER_MODULES:
        return module, words[3:]
    if program in _FOREIGN_LAUNCHERS or module in _FOREIGN_MODULES:
        hint = "a script that uses torch.distributed needs no launcher here: give the script alone"
        raise UsageError(f"{module or program} starts workers its own way", hint=hint, code="launcher-unsupported")
    return None, words
