"""Which files of a folder are code that may travel: to the nodes of a job, into checkpoints.

Left out are files that tools make, what `.gitignore` files name, and what is usually secret: by its name, or because it
is readable by its owner alone where other files are not. The folder's own ignore file has the last word, for both:
`!.env` in it sends a secret. Reads names and modes, never contents."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pathspec

from everstep.errors import UsageError

IGNORE_FILE = ".everstepignore"

_TOOLS = (
    ".git/",
    ".hg/",
    ".venv/",
    "__pycache__/",
    "*.pyc",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    "/runs/",
    ".DS_Store",
    "._*",
)
_SECRETS = (
    ".env",
    ".env.*",
    "!.env.example",
    "!.env.sample",
    "!.env.template",
    ".envrc",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".npmrc",
    ".pypirc",
    ".boto",
    ".s3cfg",
    ".dockercfg",
    ".git-credentials",
    ".htpasswd",
    ".vault-token",
    ".aws/",
    ".azure/",
    ".config/gcloud/",
    ".docker/",
    ".gnupg/",
    ".huggingface/",
    ".kaggle/",
    ".kube/",
    ".oci/",
    ".ssh/",
    "kubeconfig",
    "credentials.json",
    "everstep.token",
    "everstep.db*",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
)
_NOBODY_ELSE = stat.S_IRWXG | stat.S_IRWXO
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeFiles:
    """Names relative to the folder, with `/`, always in the same order."""

    taken: tuple[str, ...] = ()  # files, links and empty folders
    secret: tuple[str, ...] = ()  # left out; a folder ends with `/`

    @property
    def summary(self) -> str:
        """For people: how many travel, and what does not although somebody may expect it to."""
        taken = f"{len(self.taken)} file{'' if len(self.taken) == 1 else 's'}"
        if not self.secret:
            return taken
        more = f" and {len(self.secret) - _SHOWN} more" if len(self.secret) > _SHOWN else ""
        return f"{taken}; left out as usually secret: {', '.join(self.secret[:_SHOWN])}{more}"


def find_code(folder: Path, *, ignore_file: str = IGNORE_FILE, also_ignored: Iterable[str] = ()) -> CodeFiles:
    rules = _Rules(folder, ignore_file, also_ignored)
    private: list[str] = []
    taken = list(_below(folder, "", rules, private))
    hidden = set(private)
    readable = [name for name in taken if name not in hidden]
    # Where all are private, or new files would be, a mode says nothing of the one file.
    if not private or _hides_new_files() or not any((folder / name).is_file() for name in readable):
        return CodeFiles(taken=tuple(taken), secret=tuple(rules.secret))
    return CodeFiles(taken=tuple(readable), secret=tuple(sorted([*rules.secret, *private])))


class _Rules:
    def __init__(self, folder: Path, ignore_file: str, also_ignored: Iterable[str]) -> None:
        self._folder = folder
        self._own = _spec(folder / ignore_file)
        self._tools = pathspec.GitIgnoreSpec.from_lines([*_TOOLS, *also_ignored])
        self._secrets = pathspec.GitIgnoreSpec.from_lines(_SECRETS)
        self._git = list(_git_above(folder))
        self.secret: list[str] = []  # what was left out for its name

    def enter(self, name: str) -> None:
        """Nested folders may have a .gitignore of their own."""
        path = self._folder / name / ".gitignore"
        if path.is_file():
            self._git.append((path.parent, _spec(path)))

    def takes(self, name: str) -> bool:
        if (is_ignored := self._own.check_file(name).include) is not None:
            return not is_ignored
        if self._tools.match_file(name):
            return False
        if self._secrets.match_file(name):
            self.secret.append(name)
            return False
        return not self._is_ignored_by_git(name)

    def is_named(self, name: str) -> bool:
        """The ignore file says that it is to be taken."""
        return self._own.check_file(name).include is False

    def _is_ignored_by_git(self, name: str) -> bool:
        is_ignored = False
        for base, spec in self._git:
            path = self._folder / name.rstrip("/")
            if path.is_relative_to(base):
                relative = path.relative_to(base).as_posix() + ("/" if name.endswith("/") else "")
                said = spec.check_file(relative).include
                is_ignored = is_ignored if said is None else said
        return is_ignored


def _below(folder: Path, relative: str, rules: _Rules, private: list[str]) -> Iterator[str]:
    rules.enter(relative)
    names = sorted(os.listdir(folder / relative))
    if not names and relative:
        yield relative.rstrip("/")
    for each in names:
        name = f"{relative}{each}"
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            if rules.takes(f"{name}/"):
                yield from _below(folder, f"{name}/", rules, private)
        elif (path.is_symlink() or path.is_file()) and rules.takes(name):  # no sockets, pipes or devices
            if not path.is_symlink() and not path.stat().st_mode & _NOBODY_ELSE and not rules.is_named(name):
                private.append(name)
            yield name


def _git_above(folder: Path) -> Iterator[tuple[Path, pathspec.GitIgnoreSpec]]:
    """Of the folders between the repository's root and this one; none if this is part of no repository."""
    parents = list(folder.resolve().parents)
    roots = [number for number, each in enumerate(parents) if (each / ".git").exists()]
    for parent in reversed(parents[: roots[0] + 1] if roots and not (folder / ".git").exists() else []):
        spec = _spec(parent / ".gitignore")
        # A folder that git ignores, but whose code is to be sent: what says so is void.
        if not spec.match_file(f"{folder.resolve().relative_to(parent).as_posix()}/"):
            yield parent, spec


def _spec(path: Path) -> pathspec.GitIgnoreSpec:
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    try:
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise UsageError(f"{path}: {error}", hint="patterns as in a .gitignore, one in a line") from None


def _hides_new_files() -> bool:
    """Whether this process's files are private unless somebody says otherwise."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    mask = next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), 0)
    return mask & _NOBODY_ELSE & 0o444 == 0o044
