"""The code of a job or of a checkpoint as one tarball, named for its content: chosen, packed, fetched and unpacked here
alone.

The same files give the same bytes. Nothing outside the folder is packed. Unpacking writes nothing outside its
folder, even from a hostile tarball.

Not packed are files that tools make, files that a `.gitignore` lists, and files that are usually secret: by their name,
or because only their owner may read them where other files are open. The folder's own ignore file has the last word:
`!.env` in it includes a secret. The choice reads names and modes, never contents."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import pathspec

from everstep.errors import PermanentError, UsageError
from everstep.storage import private_file
from everstep.storage.shared_folder import SharedFolder

IGNORE_FILE = ".everstepignore"
MAX_BYTES = 1 << 30
LARGE_BYTES = 100 << 20
_READ_BYTES = 1 << 20
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
_UNPACKED = "code-"  # how the names of folders with unpacked code begin


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    sha256: str
    data: bytes = field(repr=False)
    files: CodeFiles = CodeFiles()

    @property
    def file_name(self) -> str:
        return file_name(self.sha256)


def file_name(sha256: str) -> str:
    return f"code-{sha256}.tar.gz"


def pack(
    folder: Path,
    *,
    ignore_file: str = IGNORE_FILE,
    private: Collection[Path] = (),
    includes: Collection[Path] = (),
    max_bytes: int = MAX_BYTES,
    skips_outside_links: bool = False,
) -> Code:
    """Files in `private` hold secrets and stay here. A link out of the folder is an error, unless it is skipped.
    In a trial's working folder, whose files are links to those of its code, the code's files are packed.
    `includes`: other files and folders, each under its own name beside the code."""
    if not folder.is_dir():
        raise UsageError(
            f"not a folder: {folder}", hint="give the folder that holds the training code", code="code-folder-missing"
        )
    kept = {path.resolve() for path in private}
    found = find_code(folder, ignore_file=ignore_file)
    taken = [name for name in found.taken if (folder / name).resolve() not in kept]
    sources = [(folder, name) for name in taken] + _included(includes, set(taken), ignore_file)
    sources = [(_origin(base, name), name) for base, name in sources]
    if skips_outside_links:
        sources = [(base, name) for base, name in sources if _stays_inside(base, base / name)]
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for base, path in ((base, base / name) for base, name in sources):
            info = _info(tar, base, path)
            if tar.offset + info.size > max_bytes:
                raise UsageError(
                    f"the code in {folder} is larger than {max_bytes >> 20} MiB, counted up to {info.name}",
                    hint=f"list data and results in {folder / ignore_file}, as in a .gitignore",
                    code="code-too-large",
                )
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    data = buffer.getvalue()
    names = tuple(name for _, name in sources)
    return Code(sha256=hashlib.sha256(data).hexdigest(), data=data, files=replace(found, taken=names))


def _included(includes: Collection[Path], taken: set[str], ignore_file: str) -> list[tuple[Path, str]]:
    """(folder, name in it) of what is packed beside the code."""
    sources: list[tuple[Path, str]] = []
    for path in (each.absolute() for each in includes):
        if not path.exists():
            raise UsageError(f"--include {path}: no such file or folder", hint="give its path", code="include-missing")
        below = find_code(path, ignore_file=ignore_file).taken if path.is_dir() else ()
        sources += [(path.parent, f"{path.name}/{name}") for name in below] or [(path.parent, path.name)]
    tops = [name for _, name in sources]
    for name in tops:
        if name in taken or tops.count(name) > 1:
            raise UsageError(
                f"--include {name}: the code has a file of that name", hint="rename one of them", code="include-twice"
            )
    return sources


def read_from(folder: str, sha256: str) -> bytes:
    """The tarball, from a path or any URI that fsspec knows."""
    data = SharedFolder(uri=folder).read(file_name(sha256))
    if data is None:
        raise PermanentError(
            f"the job's code is not at {folder.rstrip('/')}/{file_name(sha256)}",
            hint="can this node see the folder?",
            code="code-archive-missing",
        )
    return data


def folder_name(sha256: str) -> str:
    """Of the unpacked code."""
    return f"{_UNPACKED}{sha256[:16]}"


def unpacked(sha256: str, into: Path) -> Path | None:
    """The folder that it was unpacked to before, if it was."""
    folder = into / folder_name(sha256)
    return folder if folder.is_dir() else None


def unpack(data: bytes, sha256: str, into: Path) -> Path:
    """Return the folder below `into` that holds the code; one that exists already is used as it is."""
    if (there := unpacked(sha256, into)) is not None:
        return there
    _check_sum(data, sha256)
    target = into / folder_name(sha256)
    aside = Path(tempfile.mkdtemp(prefix=".code-", dir=private_file.make_folder(into)))
    try:
        _extract(data, aside, MAX_BYTES)
        os.rename(aside, target)
    except OSError:
        if not target.is_dir():  # another node that shares the folder was first
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def keep_beside(data: bytes, folder: Path) -> None:
    """The tarball of unpacked code, for `archive_of`."""
    private_file.write(_beside(folder), data)


def archive_of(folder: Path) -> Code | None:
    """What the folder was unpacked from, if that was kept. The folder's name says which tarball it is of."""
    try:
        data = _beside(folder).read_bytes()
    except OSError:
        return None
    sha256 = hashlib.sha256(data).hexdigest()
    if folder.name != folder_name(sha256):
        return None
    names = sorted(
        (Path(path) / name).relative_to(folder).as_posix()
        for path, _, files in os.walk(folder)
        for name in files
        if os.path.basename(path) != "__pycache__"
    )
    return Code(sha256=sha256, data=data, files=CodeFiles(taken=tuple(names)))


def remove(folder: Path) -> None:
    """Unpacked code, and what was kept beside it."""
    _beside(folder).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.tar.gz")


def extract(data: bytes, sha256: str, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Write the files into an empty folder. PermanentError if the tarball is damaged, too large or leads outside."""
    _check_sum(data, sha256)
    _extract(data, folder, max_bytes)


def _extract(data: bytes, folder: Path, max_bytes: int) -> None:
    try:
        _check_size(data, max_bytes)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            _check_names(tar.getmembers())
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise PermanentError(f"the code archive cannot be unpacked: {error}", code="code-archive-broken") from None


def _check_sum(data: bytes, sha256: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise PermanentError(
            f"the code archive has the checksum {found[:16]} ({len(data):,} bytes), expected {sha256[:16]}",
            code="code-archive-changed",
        )


def _check_size(data: bytes, max_bytes: int) -> None:
    """Before tarfile reads it: a small archive can claim headers larger than the memory."""
    size = 0
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        while chunk := file.read(_READ_BYTES):
            size += len(chunk)
            if size > max_bytes + tarfile.RECORDSIZE:
                raise PermanentError(
                    f"the code archive is larger than {max_bytes >> 20} MiB unpacked", code="code-archive-too-large"
                )


def _check_names(members: Sequence[tarfile.TarInfo]) -> None:
    """Refuse what `pack` never makes. tarfile's own filter has had holes, all of them with links."""
    links = {each.name for each in members if each.issym()}
    seen: set[str] = set()
    for each in members:
        parents = {str(parent) for parent in PurePosixPath(each.name).parents}
        target = (
            os.path.normpath(os.path.join(os.path.dirname(each.name), each.linkname)) if each.issym() else each.name
        )
        problem = ""
        if each.name in seen:
            problem = "is in it twice"
        elif not (each.isreg() or each.isdir() or each.issym()):
            problem = "is not a file, folder or symbolic link"
        elif ".." in PurePosixPath(each.name).parts or os.path.isabs(each.name) or parents & links:
            problem = "is not a name inside the folder"
        elif os.path.isabs(target) or target.split("/")[0] == "..":
            problem = "links to a place outside the folder"
        if problem:
            raise PermanentError(
                f"the code archive cannot be unpacked: {each.name[:80]!r} {problem}", code="code-archive-hostile"
            )
        seen.add(each.name)


def _info(tar: tarfile.TarFile, folder: Path, path: Path) -> tarfile.TarInfo:
    info = tar.gettarinfo(path, arcname=path.relative_to(folder).as_posix())
    if info.issym():
        info.linkname = _link_target(folder, path)
    if info.islnk():  # one of two names of the same file: each is a file of its own here
        info.type, info.size, info.linkname = tarfile.REGTYPE, path.stat().st_size, ""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o755 if info.mode & 0o100 or info.isdir() else 0o644
    return info


def _link_target(folder: Path, link: Path) -> str:
    """The target as seen from the link: the folder is elsewhere on a node."""
    given = os.readlink(link)
    if not _stays_inside(folder, link):
        raise UsageError(
            f"{link} leads out of the folder, to {given}",
            hint=f"copy what it points to, or list it in {IGNORE_FILE}",
            code="code-link-leads-outside",
        )
    return os.path.relpath((link.parent / given).resolve(), link.parent.resolve()) if os.path.isabs(given) else given


def _origin(folder: Path, name: str) -> Path:
    """The folder from which the file is packed: of a link to the same name in unpacked code, that code."""
    link, depth = folder / name, len(PurePosixPath(name).parts)
    if not link.is_symlink() or not os.path.isabs(target := os.readlink(link)):
        return folder
    parents = Path(target).parents
    is_same = len(parents) >= depth and os.path.relpath(target, parents[depth - 1]) == name
    is_code = any(_beside(each).is_file() for each in parents if each.name.startswith(_UNPACKED))
    return parents[depth - 1] if is_same and is_code else folder


def _stays_inside(folder: Path, link: Path) -> bool:
    return not link.is_symlink() or (link.parent / os.readlink(link)).resolve().is_relative_to(folder.resolve())


# --- which files are code --------------------------------------------------------------------------


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
