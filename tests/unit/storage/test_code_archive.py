"""Packed code, of a job or a checkpoint: the same files give the same bytes, and nothing leaves the folder."""

from __future__ import annotations

import io
import os
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from everstep.checkpoint.code_snapshot import archive_name, record_of, restore, take_snapshot
from everstep.errors import CheckpointBroken, PermanentError, UsageError
from everstep.job_file.secret import parse_secret
from everstep.jobs.secret_values import private_files
from everstep.storage.base import open_storage
from everstep.storage.code_archive import extract, file_name, pack, read_from, unpack, unpacked


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "lib" / "model.py").write_text("x = 1\n")
    return folder


def test_the_same_files_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first = pack(folder)
    os.utime(folder / "train.py", (1, 1))
    (folder / "train.py").chmod(0o640)
    assert pack(folder).sha256 == first.sha256
    (folder / "train.py").write_text("print('other')\n")
    assert pack(folder).sha256 != first.sha256


def test_what_goes_in_comes_out(folder: Path, tmp_path: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").mkdir()
    (folder / "a\\b.txt").write_text("a name like any other\n")
    (folder / "link.py").symlink_to("lib/model.py")
    os.link(folder / "train.py", folder / "twin.py")
    code = pack(folder)
    there = unpack(code.data, code.sha256, tmp_path / "node")
    assert (there / "twin.py").read_text() == "print('hello')\n"
    assert (there / "link.py").read_text() == "x = 1\n"
    assert os.access(there / "run.sh", os.X_OK)
    assert (there / "empty").is_dir()
    assert (there / "a\\b.txt").exists()
    assert unpack(code.data, code.sha256, tmp_path / "node") == there == unpacked(code.sha256, tmp_path / "node")
    assert list((tmp_path / "node").iterdir()) == [there]


def test_a_link_by_its_whole_path_leads_to_the_same_file_on_a_node(folder: Path, tmp_path: Path) -> None:
    (folder / "lib" / "link.py").symlink_to(folder / "train.py")
    code = pack(folder)
    there = unpack(code.data, code.sha256, tmp_path / "node")
    assert (there / "lib" / "link.py").resolve() == (there / "train.py").resolve()


def test_files_that_hold_secrets_do_not_travel(folder: Path) -> None:
    (folder / "job.yaml").write_text("entrypoint: train.py\nsecrets: {A: hunter2, B: 'file:lib/key'}\n")
    (folder / "lib" / "key").write_text("hunter3")
    (folder / "lib" / "other").symlink_to("key")
    secrets = {"A": parse_secret("hunter2"), "B": parse_secret(f"file:{folder}/lib/key")}
    private = private_files(secrets, job_file=folder / "job.yaml")
    assert names(pack(folder, private=private).data) == ["lib/model.py", "train.py"]
    assert private_files({"B": parse_secret("env:B")}, job_file=folder / "job.yaml") == ()


def test_what_is_ignored_stays(folder: Path) -> None:
    (folder / ".everstepignore").write_text("data/\n*.pt\n!keep.pt\n")
    for name in (
        "data/big.bin",
        "a.pt",
        "keep.pt",
        ".git/config",
        "lib/__pycache__/x.pyc",
        "runs/old/log",
        "._train.py",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert names(pack(folder).data) == [".everstepignore", "keep.pt", "lib/model.py", "train.py"]


SECRET = [".env", ".netrc", ".aws/credentials", ".kube/config", ".ssh/id_rsa", "everstep.token", "everstep.db-wal"]
SECRET += ["server.key", "lib/cert.pem", "lib/.env.production", "lib/mine"]


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("SECRET=1\n")


def test_what_is_usually_secret_travels_with_neither_job_nor_checkpoint_unless_it_is_named(folder: Path) -> None:
    put(folder, *SECRET, ".env.example")
    (folder / "lib" / "mine").chmod(0o600)
    code, snapshot = pack(folder), take_snapshot(folder)

    assert names(code.data) == [".env.example", "lib/model.py", "train.py"]
    assert snapshot.data == code.data, "a job and its checkpoints have the same archive"
    assert code.files.summary == "3 files; left out as usually secret: .aws/, .env, .kube/, .netrc, .ssh/ and 6 more"
    assert "lib/mine" in code.files.secret
    (folder / ".everstepignore").write_text("!.env\n!lib/mine\n")
    assert {".env", "lib/mine"} < set(names(pack(folder).data))


def test_modes_say_nothing_where_all_files_are_private(folder: Path) -> None:
    for path in (folder / "train.py", folder / "lib" / "model.py"):
        path.chmod(0o600)
    assert names(pack(folder).data) == ["lib/model.py", "train.py"]


def test_what_git_ignores_stays_and_the_own_ignore_file_has_the_last_word(folder: Path) -> None:
    put(folder, "notes.txt", "data/big.bin", "lib/made.c", "lib/keep.txt")
    (folder.parent / ".git").mkdir()
    (folder.parent / ".gitignore").write_text("*.txt\nwork/\n")  # of the repository that this is a part of
    assert "notes.txt" in names(pack(folder).data), "a rule that drops the whole folder is void"
    (folder.parent / ".gitignore").write_text("*.txt\n")
    (folder / ".gitignore").write_text("/data/\n")
    (folder / "lib" / ".gitignore").write_text("made.c\n!keep.txt\n")

    sent = [".gitignore", "lib/.gitignore", "lib/keep.txt", "lib/model.py", "train.py"]
    assert names(pack(folder).data) == sent
    (folder / ".everstepignore").write_text("!notes.txt\nlib/\n")
    assert names(pack(folder).data) == [".everstepignore", ".gitignore", "notes.txt", "train.py"]


def test_a_link_that_leads_out_is_refused_and_skipped_for_a_checkpoint(folder: Path) -> None:
    (folder / "data").symlink_to("/etc")
    with pytest.raises(UsageError) as refused:
        pack(folder)
    assert refused.value.code == "code-link-leads-outside" and ".everstepignore" in str(refused.value)
    assert names(take_snapshot(folder).data) == ["lib/model.py", "train.py"]


def test_code_that_is_too_large_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="counted up to train.py") as refused:
        pack(folder, max_bytes=1030)
    assert refused.value.code == "code-too-large"


def test_pipes_and_sockets_are_no_code(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert "pipe" not in names(pack(folder).data)


def test_other_bytes_than_were_sent_are_refused(folder: Path, tmp_path: Path) -> None:
    code = pack(folder)
    with pytest.raises(PermanentError) as refused:
        unpack(code.data[:-1] + b"x", code.sha256, tmp_path / "node")
    assert refused.value.code == "code-archive-changed"
    assert not (tmp_path / "node").exists()


# --- archives that somebody else has written ---


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def archive(*entries: tarfile.TarInfo, num_bytes: int = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for each in entries:
            each.size = num_bytes
            tar.addfile(each, io.BytesIO(bytes(num_bytes)))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "entries",
    [
        [entry("../outside")],
        [entry("a/../../outside")],
        [entry("/tmp/outside")],
        [entry("pipe", tarfile.FIFOTYPE)],
        [entry("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [entry("link", tarfile.SYMTYPE, "/etc/passwd")],
        [entry("a/link", tarfile.SYMTYPE, "../../etc/passwd")],
        [entry("real", tarfile.DIRTYPE), entry("link", tarfile.SYMTYPE, "real"), entry("link/through")],
        [entry("twice"), entry("twice")],
    ],
)
def test_a_hostile_archive_writes_nothing(tmp_path: Path, entries: list[tarfile.TarInfo]) -> None:
    data = archive(*entries)
    with pytest.raises(PermanentError) as refused:
        unpack(data, sha256(data).hexdigest(), tmp_path / "a" / "node")
    assert refused.value.code == "code-archive-hostile"
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"not a tarball", "code-archive-broken"),
        (archive(entry("a"), num_bytes=1000)[:-30], "code-archive-broken"),
        (archive(entry("a"), num_bytes=2 << 20), "code-archive-too-large"),
    ],
    ids=["text", "cut off", "too large"],
)
def test_an_archive_that_cannot_be_unpacked_is_refused(tmp_path: Path, data: bytes, code: str) -> None:
    with pytest.raises(PermanentError) as refused:
        extract(data, sha256(data).hexdigest(), tmp_path, max_bytes=1 << 20)
    assert refused.value.code == code


def test_a_checkpoint_gives_back_the_code_that_was_taken(folder: Path, tmp_path: Path) -> None:
    storage, code = open_storage(tmp_path / "ckpt"), take_snapshot(folder)
    storage.put(archive_name(code.sha256), code.data)
    (tmp_path / "out").mkdir()

    restore(storage, record_of(code), tmp_path / "out")

    assert take_snapshot(tmp_path / "out").sha256 == code.sha256


@pytest.mark.parametrize("name", ["code/../../x.tar.gz", "code/0000000000000000.tar.gz", "/etc/passwd", 3])
def test_a_record_that_names_another_file_is_refused(tmp_path: Path, name: object) -> None:
    with pytest.raises(CheckpointBroken):
        restore(open_storage(tmp_path), {"sha256": sha256(b"x").hexdigest(), "archive": name}, tmp_path)


def test_code_is_read_out_of_any_folder(folder: Path, tmp_path: Path) -> None:
    code = pack(folder)
    (tmp_path / file_name(code.sha256)).write_bytes(code.data)
    assert read_from(str(tmp_path), code.sha256) == read_from(f"file://{tmp_path}/", code.sha256) == code.data
    with pytest.raises(PermanentError) as missing:
        read_from(str(tmp_path / "elsewhere"), code.sha256)
    assert missing.value.code == "code-archive-missing"


def test_a_workdir_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as missing:
        pack(tmp_path / "nowhere")
    assert missing.value.code == "code-folder-missing"
