"""https by certificate files: who is trusted, who is not, and what people are told."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time

import pytest

from everstep import env
from everstep.client.calls import Coordinator
from everstep.coordinator.edge.certificate import server_context
from everstep.errors import CoordinatorUnreachable, UsageError
from everstep.retry import patiently
from lab.certificates import Authority

SECRET = "not-to-be-seen-anywhere"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def trusting(authority, monkeypatch):
    monkeypatch.setenv(env.CA, str(authority.certificate))


@pytest.fixture
def serving(tmp_path, server_class):
    servers = []

    def start(certificate_and_key):
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(server_class(folder, str(folder / "store.db"), certificate_and_key))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
        assert "Traceback" not in server.log_file.read_text()


def test_a_whole_job_by_https(authority, trusting, serving, play):
    server = serving(authority.issue("good"))
    assert server.url.startswith("https://127.0.0.1:")

    job = play(server, start_workers=4)
    workers = job.training(4)
    workers[0].break_("a socket broke")
    answers = job.together(*(worker.arrive for worker in workers[1:]), workers[0].arrive)

    assert {answer.generation for answer in answers} == {2}
    assert job.view().generation == 2


def check(url):
    with Coordinator(url, SECRET, "job") as coordinator, pytest.raises(UsageError) as refused:
        patiently(coordinator.check, 60.0)
    assert SECRET not in str(refused.value)
    return refused.value


def test_a_certificate_of_somebody_unknown_is_refused(authority, serving, tmp_path, monkeypatch):
    url = serving(authority.issue("unknown")).url
    monkeypatch.delenv(env.CA, raising=False)

    told = check(url)
    assert "certificate is not trusted: unable to get local issuer certificate" in told.message
    assert "EVERSTEP_CA or --ca-file must name the certificate that signed it; now it is not set" in told.hint

    monkeypatch.setenv(env.CA, str(Authority(tmp_path).certificate))  # another one's
    assert f"now it is {tmp_path / 'ca.pem'}" in check(url).hint


def test_an_expired_certificate_is_refused(authority, trusting, serving):
    told = check(serving(authority.issue("expired", days=-1)).url)
    assert "certificate has expired" in told.message
    assert "a new certificate" in told.hint


def test_a_certificate_of_another_host_is_refused(authority, trusting, serving):
    told = check(serving(authority.issue("other", alternative="DNS:elsewhere.example")).url)
    assert "mismatch, certificate is not valid for '127.0.0.1'" in told.message
    assert "subjectAltName" in told.hint


def test_plain_http_to_a_port_with_tls(authority, serving):
    url = serving(authority.issue("plain")).url.replace("https", "http")
    told = check(url)
    assert told.message == f"{url}: the server there speaks https"
    assert told.hint == f"write {url.replace('http', 'https')}"


def test_https_to_a_port_without_tls(server, trusting):
    url = server.url.replace("http", "https")
    told = check(url)
    assert told.message == f"{url}: the server there speaks plain http"
    assert told.hint == f"write {server.url}"


def test_a_coordinator_that_is_known_may_get_a_new_certificate_meanwhile(authority, trusting, serving):
    """Workers in the middle of training do not give up at once: a certificate can be replaced."""
    server = serving(authority.issue("renewed"))
    with Coordinator(server.url, server.token, "job") as coordinator:
        coordinator.check()
        server.kill()
        authority.issue("renewed", days=-1)
        server.start()
        with pytest.raises(CoordinatorUnreachable, match="certificate has expired"):
            until_connected_anew(coordinator)
        server.kill()
        authority.issue("renewed")
        server.start()
        assert until_connected_anew(coordinator).now > 0


def until_connected_anew(coordinator):
    """The first call, at least, finds the old connection broken."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return coordinator.check()
        except CoordinatorUnreachable as error:
            if "certificate" in error.message or time.monotonic() > deadline:
                raise


@pytest.mark.parametrize("content", [None, "nothing of the kind"])
def test_a_file_of_authorities_that_is_none(tmp_path, monkeypatch, content):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(env.CA, str(path))
    with pytest.raises(UsageError, match=f"EVERSTEP_CA={path}: "):
        Coordinator("https://127.0.0.1:1", SECRET, "job")


# --- the coordinator's own files ------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_that_others_may_read_is_refused(authority, mode):
    certificate, key = authority.issue("open")
    key.chmod(mode)
    with pytest.raises(UsageError) as refused:
        server_context(certificate, key)
    assert f"has mode {mode:04o}: others may read it" in refused.value.message
    assert refused.value.hint == f"chmod 600 {key}"


def test_files_that_do_not_go_together_are_refused(authority, tmp_path):
    certificate, key = authority.issue("one")
    _, other_key = authority.issue("two")
    with pytest.raises(UsageError, match=f"{other_key} is not the key of {certificate}"):
        server_context(certificate, other_key)
    with pytest.raises(UsageError, match="cannot read .*nowhere: No such file"):
        server_context(tmp_path / "nowhere", key)
    with pytest.raises(UsageError, match="TLS needs a certificate and its key"):
        server_context(certificate, None)
    with pytest.raises(UsageError, match="are not a certificate and its key"):
        server_context(key, key)
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:word", "-out", locked]
    subprocess.run(command, check=True)
    locked.chmod(0o600)
    with pytest.raises(UsageError, match="needs a passphrase"):
        server_context(certificate, locked)


@pytest.mark.filterwarnings("ignore:.*TLSv1_1")
def test_old_versions_of_tls_are_not_spoken(authority, serving):
    server = serving(authority.issue("modern"))
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", server.port)) as connection, pytest.raises(ssl.SSLError):
        old.wrap_socket(connection)


# --- the command line -----------------------------------------------------------------------------


def serve_briefly(tmp_path, *options):
    """`everstep serve` until it is ready: its URL and all that it printed."""
    ready = tmp_path / "url"
    command = [sys.executable, "-m", "everstep", "serve", "--port", "0", "--ready-file", ready, *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return ready.read_text().strip(), (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()


def test_one_without_tls_that_others_can_reach_says_so_once(tmp_path):
    url, told = serve_briefly(tmp_path, "--host", "0.0.0.0")
    assert told.count(f"{url} is open to other machines and has no TLS") == 1
    assert "HINT: --tls-cert FILE --tls-key FILE" in told


def test_one_for_this_machine_alone_or_with_tls_has_nothing_to_say(tmp_path, authority):
    certificate, key = authority.issue("quiet")
    for folder, options in {"a": (), "b": ("--host", "0.0.0.0", "--tls-cert", certificate, "--tls-key", key)}.items():
        (tmp_path / folder).mkdir()
        url, told = serve_briefly(tmp_path / folder, *options)
        assert told == f"everstep coordinator at {url}\n"


def test_status_by_https(authority, serving, tmp_path):
    server = serving(authority.issue("status"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "everstep", "status", "--coordinator", server.url, "--job", "j"]
    command += ["--token-file", str(server.token_file)]
    with_ca = [*command, "--ca-file", os.path.relpath(authority.certificate, tmp_path)]

    done = subprocess.run(with_ca, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "there is no job j" in done.stderr
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, "--ca-file" in done.stderr) == (2, True)
