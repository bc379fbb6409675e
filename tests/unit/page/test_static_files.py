"""The page's files: kept by browsers until they change, small on the wire, and nothing else of the disk."""

from __future__ import annotations

import gzip
import hashlib
import re

import pytest

from everstep.page.static_files import StaticFiles

INDEX = '<script type="module" src="/static/app.js"></script><link href="/static/page.css">'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "static" / "built").mkdir(parents=True)
    (tmp_path / "secret.js").write_text("secret")
    for name, text in {"index.html": INDEX, "app.js": "import './b.js';" * 50, "built/main.js": "p"}.items():
        (tmp_path / "static" / name).write_text(text)
    return tmp_path / "static"


@pytest.fixture
def files(folder):
    return StaticFiles(folder)


def header(reply, name):
    return dict(reply.headers)[name].decode()


def version(files):
    return re.search(r'"/static/(\w+)/app.js"', files.reply("/", {}).body.decode())[1]


def test_every_view_is_the_same_index(files):
    assert files.reply("/", {}).body == files.reply("/jobs/a", {}).body == files.reply("/compare", {}).body
    assert header(files.reply("/", {}), b"cache-control") == "no-cache"


def test_the_index_names_files_by_a_version_that_is_kept_for_good(files):
    reply = files.reply(f"/static/{version(files)}/app.js", {})
    assert reply.body.startswith(b"import") and "immutable" in header(reply, b"cache-control")
    assert header(reply, b"content-type") == "text/javascript; charset=utf-8"


def test_a_file_asked_for_before_is_sent_without_looking(files, folder):
    path = f"/static/{version(files)}/app.js"
    assert files.kept(path, {}) is None
    asked = files.reply(path, {})
    (folder / "app.js").unlink()
    assert files.kept(path, {}) == asked
    assert files.kept("/static/app.js", {}) is None and files.kept(f"/static/{version(files)}/", {}) is None


def test_scripts_that_changed_after_the_page_was_built_are_named_once(files, folder, caplog):
    digest = hashlib.sha256((folder / "app.js").read_bytes()).hexdigest()
    (folder / "built" / "built_from.txt").write_text(f"{digest}  app.js\n")
    files.reply("/", {})
    assert not caplog.messages
    (folder / "app.js").write_text("changed")
    (folder / "new.js").write_text("new")
    for _ in range(3):
        assert files.reply("/static/built/main.js", {}).body == b"p"
    assert caplog.messages == ["the page is older than its scripts app.js, new.js: run make page"]


def test_a_file_that_changes_gets_another_address(files, folder):
    before = version(files)
    (folder / "app.js").write_text("changed")
    assert version(files) != before
    assert files.reply(f"/static/{version(files)}/app.js", {}).body == b"changed"
    assert files.reply(f"/static/{before}/app.js", {}) is None


def test_a_browser_that_has_a_file_is_not_sent_it_again(files):
    etag = dict(files.reply("/static/app.js", {}).headers)[b"etag"]
    again = files.reply("/static/app.js", {b"if-none-match": b'W/"x", ' + etag})
    assert (again.status, again.body) == (304, b"")
    assert files.reply("/static/app.js", {b"if-none-match": b'"x"'}).status == 200


def test_files_are_compressed_for_those_who_can_read_it(files):
    packed, plain = files.reply("/static/app.js", {b"accept-encoding": b"br, gzip"}), files.reply("/static/app.js", {})
    assert gzip.decompress(packed.body) == plain.body and len(packed.body) < len(plain.body)
    assert (header(packed, b"content-encoding"), header(packed, b"vary")) == ("gzip", "accept-encoding")


@pytest.mark.parametrize(
    "path", ["/static/../secret.js", "/static//etc/passwd", "/static/none.js", "/favicon.ico", "/static/", "/x.py"]
)
def test_what_is_not_in_the_folder_is_not_there(files, path):
    assert files.reply(path, {}) is None


def test_before_it_is_built_the_page_says_what_to_do(files, folder):
    (folder / "built" / "main.js").unlink()
    reply = files.reply("/", {})
    assert reply.status == 200 and b"make page" in reply.body and b"<script" not in reply.body
