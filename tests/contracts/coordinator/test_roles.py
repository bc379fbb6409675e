"""Who holds which token may do what, and is told what is missing."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys

import httpx
import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import CoordinatorUnreachable, Refused, UsageError
from everstep.retry import patiently
from everstep.wire.operations import OPERATIONS
from everstep.wire.tokens import (
    ALL,
    NEEDED,
    READ_ONLY,
    ROLES,
    USER,
    WORKER,
    WORKER_OR_USER,
    choose,
    new_tokens,
    only_for_workers,
    parse_tokens,
)
from lab.search_programs import create, custom, post, validate

TOKENS = "# three people\nworker:wwww\nuser:uuuu\nread-only:rrrr\n"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, server_class):
    folder = tmp_path_factory.mktemp("roles")
    (folder / "token").write_text(TOKENS)
    (folder / "token").chmod(0o600)
    server = server_class(folder, str(folder / "store.db"))
    yield server
    server.stop()


def as_(server, text):
    return Coordinator(server.url, text, "roles")


def test_each_role_does_its_own_part(guarded):
    with as_(guarded, "user:uuuu") as user, as_(guarded, "worker:wwww") as worker, as_(guarded, "rrrr") as reader:
        user.create_job(wire.JobSpec())
        number = worker.reserve(wire.ReserveWorker(agent="a", request="r"))
        assert [each.worker for each in reader.view().workers] == [number.worker]
        assert worker.view() == user.view() == reader.view()
        user.stop(wire.Stop(reason="enough"))
        assert reader.view().reason == "enough"


@pytest.mark.parametrize(
    ("text", "has", "call", "needs"),
    [
        ("worker:wwww", WORKER, lambda c: c.create_job(wire.JobSpec()), USER),
        ("worker:wwww", WORKER, lambda c: c.stop(wire.Stop(reason="no")), USER),
        ("user:uuuu", USER, lambda c: c.reserve(wire.ReserveWorker(agent="a", request="r")), WORKER),
        ("user:uuuu", USER, lambda c: c.exited("w0", wire.WorkerExit(exit_code=0)), WORKER),
        ("read-only:rrrr", READ_ONLY, lambda c: c.create_job(wire.JobSpec()), USER),
        ("read-only:rrrr", READ_ONLY, lambda c: c.exited("w0", wire.WorkerExit(exit_code=0)), WORKER),
        ("read-only:rrrr", READ_ONLY, lambda c: c.upload_code("0" * 64, b""), WORKER_OR_USER),
        ("read-only:rrrr", READ_ONLY, lambda c: c.create_experiment(custom()), WORKER_OR_USER),
        ("read-only:rrrr", READ_ONLY, lambda c: c.search_state(1), WORKER_OR_USER),
        ("read-only:rrrr", READ_ONLY, lambda c: c.search_operations(1, post(1)), WORKER_OR_USER),
        ("worker:wwww", WORKER, lambda c: c.act(1, wire.ExperimentAction(action="kill")), USER),
        ("worker:wwww", WORKER, lambda c: c.change(1, wire.ExperimentChange(name="mine")), USER),
        ("read-only:rrrr", READ_ONLY, lambda c: c.fork(1, wire.ExperimentFork(request="r")), USER),
        ("worker:wwww", WORKER, lambda c: c.fork(1, wire.ExperimentFork(request="r")), USER),
        ("worker:wwww", WORKER, lambda c: c.kill_trial(1, 1), USER),
        ("worker:wwww", WORKER, lambda c: c.verify_trial(1, 1, wire.VerifyRequest(request="r")), USER),
    ],
)
def test_another_role_is_refused_and_told_which_is_needed(guarded, text, has, call, needs):
    with as_(guarded, text) as coordinator, pytest.raises(Refused) as refused:
        call(coordinator)

    assert refused.value.status == 403
    assert refused.value.code == "role-insufficient"
    assert f"403 the token's role is {has}, and this needs {needs}" in refused.value.message
    assert "one token of each role" in refused.value.hint
    assert text.partition(":")[2] not in str(refused.value)


@pytest.mark.parametrize("text", ["worker:wwww", "user:uuuu"])
def test_a_search_runs_with_a_workers_token_as_with_a_users(guarded, text):
    with as_(guarded, text) as program:
        number = program.create_experiment(custom()).experiment
        seen = program.search_operations(number, post(1, create("a"), validate("a", 4), state="s"))
        assert program.search_state(number) == seen and seen.state == "s"


def test_the_text_before_the_colon_is_not_part_of_the_token(guarded):
    for header in ("Bearer worker:wwww", "Bearer www", "Bearer wwwwuuuu", "bearer wwww"):
        answer = httpx.get(f"{guarded.url}/v1/health", headers={"authorization": header}, trust_env=False, timeout=60)
        assert answer.status_code == 401


def test_a_client_with_all_tokens_sends_the_least_that_will_do():
    tokens = parse_tokens(TOKENS)
    assert {role: choose(tokens, role).word for role in ROLES} == {WORKER: "wwww", USER: "uuuu", READ_ONLY: "rrrr"}
    assert choose(tokens, WORKER_OR_USER).word == "wwww" and choose(parse_tokens("user:u"), WORKER_OR_USER).word == "u"
    assert choose(parse_tokens("worker:w user:u"), READ_ONLY).word == "w"
    assert choose(parse_tokens("read-only:r"), USER) is None
    assert choose(parse_tokens("one-for-all"), USER).role == ALL


def test_workers_are_given_theirs_alone():
    assert only_for_workers(TOKENS) == "worker:wwww"
    assert only_for_workers("one-for-all") == "one-for-all"
    assert only_for_workers("user:u") == "user:u"  # the coordinator will say what is missing


@pytest.mark.parametrize("text", ["workers:secret", "secret:thing", "worker:", "se\u00e9cret", "sec\x07ret"])
def test_a_token_that_cannot_be_one_is_refused_without_being_shown(text):
    with pytest.raises(UsageError) as refused:
        parse_tokens(text)
    assert "secret" not in str(refused.value) and "ret" not in str(refused.value).replace("characters", "")


@pytest.mark.parametrize(
    ("text", "role", "person", "word"),
    [
        ("user:alice:uuuu", USER, "alice", "uuuu"),
        ("user:a.b-c_2:u:u", USER, "a.b-c_2", "u:u"),
        ("user::u:u", USER, "", "u:u"),
        ("all::a:b", ALL, "", "a:b"),
        ("all:root:aaaa", ALL, "root", "aaaa"),
        ("worker:wwww", WORKER, "", "wwww"),
        ("aaaa", ALL, "", "aaaa"),
    ],
)
def test_a_token_may_have_a_name_and_colons(text, role, person, word):
    (token,) = parse_tokens(text)
    assert (token.role, token.person, token.word) == (role, person, word)
    assert token.is_administrator == (role == ALL)
    assert parse_tokens(str(token)) == (token,), "written as it is read"


@pytest.mark.parametrize("text", ["user:al ice:uuuu", "user:al/ice:uuuu", f"user:{'a' * 65}:uuuu", "user:\u00e9:uuuu"])
def test_a_name_with_other_characters_is_refused_without_showing_the_token(text):
    with pytest.raises(UsageError) as refused:
        parse_tokens(text)
    assert "uuuu" not in str(refused.value)


def test_what_becomes_a_persons_is_sent_with_that_persons_token():
    tokens = parse_tokens("worker:w user:alice:u read-only:r")
    assert choose(tokens, WORKER_OR_USER).person == choose(tokens, USER).person == "alice"
    assert choose(tokens, READ_ONLY).word == "r" and choose(tokens, WORKER).word == "w"


def test_tokens_are_not_shown_by_accident():
    assert "wwww" not in repr(parse_tokens(TOKENS))


def test_users_create_and_stop_both_search_readers_look_and_workers_do_the_rest():
    by_role = {role: {each.name for each in OPERATIONS if each.role == role} for role in NEEDED}
    of_pools = {"change_agents", "report_nodes"}
    of_hooks = {"create_webhook", "webhooks", "test_webhook", "delete_webhook", "deliveries"}
    of_models = {"create_model", "change_model", "delete_model", "register_version", "change_version", "delete_version"}
    of_others = {"change_checkpoint", "remove_files", "set_template", "delete_template", *of_pools}
    of_experiments = {"act", "change", "fork", "kill_trial", "verify_trial"}
    assert by_role[USER] == {"create_job", "stop", *of_experiments, *of_models, *of_others, *of_hooks}
    assert by_role[WORKER_OR_USER] == {"upload_code", "create_experiment", "search_state", "search_operations"}
    looks = {each.name for each in OPERATIONS if each.method == "GET"}
    assert by_role[READ_ONLY] == looks - {"code", "search_state", *of_hooks} | {"page_code"}


def test_serve_makes_one_of_each_role_for_its_owner_alone(tmp_path):
    path = tmp_path / "everstep.token"
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends by itself, after making them
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "everstep", "serve", "--port", port, "--token-file", path]
        done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True)

    assert done.returncode == 2, done.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    tokens = parse_tokens(path.read_text())
    assert [token.role for token in tokens] == list(ROLES)
    assert len({token.word for token in tokens}) == 3
    assert not any(token.word.encode() in done.stdout + done.stderr for token in tokens)
    assert new_tokens() != new_tokens()


# --- too many -------------------------------------------------------------------------------------


@pytest.fixture
def pestered(tmp_path, server_class):
    server = server_class(tmp_path, str(tmp_path / "db"))
    yield server
    server.stop()


def client(server):
    return httpx.Client(base_url=server.url, trust_env=False, timeout=60)


def test_strangers_are_slowed_down_and_nobody_else(pestered):
    with client(pestered) as stranger, as_(pestered, pestered.token) as friend:
        num_answered = 0
        while (last := stranger.get("/v1/health")).status_code == 401:
            num_answered += 1

        assert num_answered >= 100
        assert (last.status_code, last.headers["retry-after"]) == (429, "1")
        assert last.json()["code"] == "too-many-calls"
        assert friend.check().now > 0


def test_a_client_that_is_told_to_wait_does_so(pestered):
    with client(pestered) as stranger:
        while stranger.get("/v1/health").status_code != 429:
            pass
    with as_(pestered, "not-the-token") as coordinator:
        with pytest.raises(CoordinatorUnreachable, match="429 too many calls") as busy:
            while True:  # sooner than it forgets ten a second
                try:
                    coordinator.check()
                except Refused:
                    pass
        assert busy.value.wait_s == 1.0
        with pytest.raises(Refused, match="401"):  # after the pause there is an answer
            patiently(coordinator.check, 60.0)
