"""The code of an experiment: its files listed, and read as text, from the tarball in the coordinator's folder."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.storage.code_archive import pack
from lab.experiments import spec


@pytest.fixture
def people(server):
    with Coordinator(server.url, server.token, "none") as people:
        yield people


def begin(people, **order):
    return people.create_experiment(spec("random", max_trials=1, order=order)).experiment


FILES = {"train.py": "print('ü')\n".encode(), "data.bin": b"\0\1", "long.txt": "ü".encode() * 200_000}


def refused_with(call):
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.status, refused.value.code


def test_code_is_listed_and_read_as_text(people, tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    code = pack(tmp_path)
    people.upload_code(code.sha256, code.data)
    number = begin(people, code=code.sha256)
    listed = people.code_files(number)
    sizes = {each.name: each.num_bytes for each in listed.files}
    assert (listed.code, sizes) == (code.sha256, {"data.bin": 2, "long.txt": 400_000, "train.py": 12})
    text = people.code_text(number, name="train.py")
    assert (text.text, text.num_bytes, text.is_cut) == ("print('ü')\n", 12, False)
    long = people.code_text(number, name="long.txt")
    assert long.is_cut and long.num_bytes == 400_000 and set(long.text) == {"ü"}
    for name, refusal in (("data.bin", "binary"), ("../token", "unknown"), ("", "unknown")):
        refused = refused_with(lambda name=name: people.code_text(number, name=name))
        assert refused == (422, f"code-file-{refusal}")


def test_an_experiment_without_code_has_no_files(people):
    number = begin(people)
    assert people.code_files(number) == wire.CodeFileList(code="", files=[])
    assert refused_with(lambda: people.code_text(number, name="train.py")) == (404, "code-unknown")


def test_an_archive_that_is_broken_or_hostile_is_refused(people):
    hostile = io.BytesIO()
    with tarfile.open(fileobj=hostile, mode="w:gz") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    for data, refusal in ((b"no archive", "code-archive-broken"), (hostile.getvalue(), "code-file-link")):
        digest = hashlib.sha256(data).hexdigest()
        people.upload_code(digest, data)
        number = begin(people, code=digest)
        assert refused_with(lambda number=number: people.code_text(number, name="link")) == (422, refusal)


def test_code_that_is_no_longer_there_is_said_to_be_gone(people):
    number = begin(people, code="0" * 64)
    assert refused_with(lambda: people.code_files(number)) == (404, "code-unknown")
