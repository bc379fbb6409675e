"""Which files of a folder are code: the one rule for the nodes of a job and for checkpoints.

Left out are files that tools make, files that a `.gitignore` lists, and files that are usually secret: by their name,
or because only their owner may read them where other files are open. The folder's own ignore file has the last word:
`!.env` in it includes a secret. Reads names and modes, never contents."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pathspec

from everstep.errors import UsageError

IGNORE_FILE = ".everstepignore"

_TOOLS = (
    ".git/", ".hg/", ".venv/", "venv/", "__pycache__/", "*.pyc", "*.egg-info/", "node_modules/", "/runs/",
    ".ipynb_checkpoints/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".cache/", ".nox/", ".tox/",
    ".idea/", ".vscode/", ".DS_Store", "._*",
)  # fmt: skip
_SECRETS = (
    ".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", ".envrc",
    ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".boto", ".s3cfg", ".dockercfg",
    ".git-credentials", ".htpasswd", ".vault-token", ".*_history",
    ".aws/", ".azure/", ".config/gcloud/", ".docker/", ".gnupg/", ".huggingface/", ".kaggle/", ".kube/", ".oci/",
    ".ssh/", "kubeconfig", "credentials.json", "everstep.token", "everstep.db*",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore",
)  # fmt: skip
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeFiles:
    """Names relative to the folder, with `/`, always in the same order."""

    taken: tuple[str, ...] = ()  # files, links and empty folders
    secret: tuple[str, ...] = ()  # left out; a folder ends with `/`

    @property
    def summary(self) -> str:
        """For people: how many files are packed, and which were left out as secrets."""
        taken = f"{len(self.taken)} file{'' if len(self.taken) == 1 else 's'}"
        if not self.secret:
            return taken
        more = f" and {len(self.secret) - _SHOWN} more" if len(self.secret) > _SHOWN else ""
        return f"{taken}; left out as usually secret: {', '.join(self.secret[:_SHOWN])}{more}"


def find_code(folder: Path, *, ignore_file: str = IGNORE_FILE) -> CodeFiles:
    rules = _Rules(folder, ignore_file)
    private: list[str] = []
    taken = list(_below(folder, "", rules, private))
    hidden = set(private)
    readable = [name for name in taken if name not in hidden]
    # Where all files are private, or new files would be, the mode of a single file means nothing.
    if not private or _hides_new_files() or not any((folder / name).is_file() for name in readable):
        return CodeFiles(taken=tuple(taken), secret=tuple(rules.secret))
    return CodeFiles(taken=tuple(readable), secret=tuple(sorted([*rules.secret, *private])))


class _Rules:
    def __init__(self, folder: Path, ignore_file: str) -> None:
        self._folder = folder
        self._own = _spec(folder / ignore_file)
        self._tools = pathspec.GitIgnoreSpec.from_lines(_TOOLS)
        self._secrets = pathspec.GitIgnoreSpec.from_lines(_SECRETS)
        self._git = list(_git_above(folder))
        self.secret: list[str] = []  # left out for their names

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
        """Whether the ignore file includes it explicitly."""
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
            if not path.is_symlink() and not path.stat().st_mode & _OTHERS and not rules.is_named(name):
                private.append(name)
            yield name


def _git_above(folder: Path) -> Iterator[tuple[Path, pathspec.GitIgnoreSpec]]:
    """The .gitignore files from the repository's root down to this folder; none outside a repository."""
    parents = list(folder.resolve().parents)
    roots = [number for number, each in enumerate(parents) if (each / ".git").exists()]
    for parent in reversed(parents[: roots[0] + 1] if roots and not (folder / ".git").exists() else []):
        spec = _spec(parent / ".gitignore")
        # The user asked to pack this folder: a rule that ignores all of it does not count.
        if not spec.match_file(f"{folder.resolve().relative_to(parent).as_posix()}/"):
            yield parent, spec


def _spec(path: Path) -> pathspec.GitIgnoreSpec:
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    try:
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise UsageError(
            f"{path}: {error}", hint="write one pattern per line, as in a .gitignore", code="ignore-file-invalid"
        ) from None


def _hides_new_files() -> bool:
    """Whether the umask makes this process's files private."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    mask = next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), 0)
    return mask & _OTHERS & 0o444 == 0o044
