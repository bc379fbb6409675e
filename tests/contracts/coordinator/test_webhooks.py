"""Webhooks, by real calls, on each store: what was asked for is received, signed, once per ID."""

from __future__ import annotations

import json
import re
import time

import pytest

from everstep import wire
from everstep.errors import Refused
from lab import guide
from lab.command import EVERSTEP, run, until
from lab.experiments import spec
from lab.log_writer import Writer
from lab.people import ALICE, ANYONE, BOB, READER, ROOT, TakingAgent, as_, write_tokens
from lab.webhook_receiver import WebhookReceiver, allowing, status

GUIDE = guide.GUIDES.parent / "webhooks.md"


@pytest.fixture(scope="module")
def receiver():
    with WebhookReceiver() as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory, server_class, store_url, receiver):
    folder = tmp_path_factory.mktemp("webhooks")
    write_tokens(folder)
    made = server_class(folder, store_url, before=allowing(receiver.host, "*.localdomain:1"))
    yield made
    made.stop()
    log = made.log_file.read_text()
    assert "Traceback" not in log and "/token-in-url" not in log, log


@pytest.fixture
def alice(server, receiver):
    receiver.received.clear()
    receiver.reply = status(200, b"thanks")
    with as_(server, ALICE) as people:
        yield people
        for each in people.webhooks().webhooks:
            people.delete_webhook(each.webhook)


def created(server, token=ALICE, **given):
    with as_(server, token) as people:
        return people.create_experiment(spec("random", **{"max_trials": 1, **given})).experiment


def act(people, number, action):
    people.act(number, wire.ExperimentAction(action=action))


def ended(people, webhook, num):
    """Deliveries, once so many are not waiting any more."""

    def found():
        return people.deliveries(webhook, limit=1000).deliveries

    until(lambda: sum(each.state != "waiting" for each in found()) >= num, lambda: str(found()))
    return found()


def test_exactly_the_events_that_were_asked_for_are_received_and_signed(server, alice, receiver):
    one = alice.create_webhook(receiver.new("ends", "experiment-canceled", "trial-canceled", path="/ends"))
    two = alice.create_webhook(receiver.new("pauses", "experiment-paused", path="/pauses"))
    number = created(server, max_trials=2)
    act(alice, number, "pause")
    act(alice, number, "activate")
    act(alice, number, "kill")

    receiver.wait(4)
    ended(alice, one.webhook.webhook, 3)
    ended(alice, two.webhook.webhook, 1)
    ends, pauses = receiver.of("/ends"), receiver.of("/pauses")
    told = sorted((each.event["event_type"], each.event["condition"]["state"]) for each in ends)
    assert told == [("EXPERIMENT_STATE_CHANGE", "CANCELED"), *[("TRIAL_STATE_CHANGE", "CANCELED")] * 2]
    assert [each.event["condition"] for each in pauses] == [{"state": "PAUSED"}]
    assert {each.event["event_data"]["experiment"]["id"] for each in receiver.received} == {number}
    assert all(each.is_signed_by(one.secret) for each in ends)
    assert all(each.is_signed_by(two.secret) for each in pauses) and not pauses[0].is_signed_by(one.secret)
    assert len({each.id for each in receiver.received}) == 4
    assert all(each.event["event_id"] == each.id for each in receiver.received)
    assert all(abs(int(each.headers["X-Everstep-Timestamp"]) - time.time()) < 300 for each in receiver.received)


def test_a_failed_delivery_comes_again_with_the_same_id_until_it_is_accepted(server, alice, receiver):
    def refuse_twice(handler, number):
        status(503 if number <= 2 else 200, b"busy now")(handler, number)

    receiver.reply = refuse_twice
    hook = alice.create_webhook(receiver.new("retried", "experiment-canceled")).webhook
    act(alice, created(server), "kill")
    (delivery,) = ended(alice, hook.webhook, 1)
    got = receiver.wait(3)
    assert (delivery.state, delivery.num_attempts, delivery.status) == ("delivered", 3, 200)
    assert {each.id for each in got} == {delivery.delivery} and len({each.body for each in got}) == 1
    assert delivery.event.startswith("experiment ") and "CANCELED" in delivery.event


def test_a_redirect_is_not_followed_and_the_reason_is_shown(server, alice, receiver):
    receiver.reply = status(302, Location=receiver.url("/elsewhere"))
    hook = alice.create_webhook(receiver.new("moved", "experiment-canceled")).webhook
    answer = alice.test_webhook(hook.webhook)
    assert (answer.is_delivered, answer.status) == (False, 302) and "redirects are not followed" in answer.reason
    act(alice, created(server), "kill")
    receiver.wait(3)
    (delivery,) = alice.deliveries(hook.webhook).deliveries
    assert (delivery.state, delivery.status) == ("waiting", 302)
    assert "redirects are not followed" in delivery.reason
    assert not receiver.of("/elsewhere")


def test_a_test_is_sent_at_once_and_its_answer_returned(alice, receiver):
    made = alice.create_webhook(receiver.new("tested", "alert"))
    answer = alice.test_webhook(made.webhook.webhook)
    (got,) = receiver.received
    assert (answer.is_delivered, answer.status, answer.reason) == (True, 200, "200: thanks")
    assert (got.id, got.event["event_type"]) == (answer.delivery, "TEST") and got.is_signed_by(made.secret)
    assert alice.deliveries(made.webhook.webhook).deliveries == []


def test_the_secret_and_the_url_are_shown_to_nobody_later(server, alice, receiver):
    new = receiver.new("private", "alert", path="/token-in-url")
    made = alice.create_webhook(new)
    assert alice.create_webhook(new) == made, "a repeated request"
    assert len(made.secret) >= 40 and made.secret not in repr(made) and "token-in-url" not in repr(new)
    with as_(server, ROOT) as root:
        for people in (alice, root):
            text = str(people.webhooks())
            assert made.secret not in text and "token-in-url" not in text and "127.0.0.1" in text


def test_who_may_create_see_and_delete_webhooks(server, alice, receiver):
    mine = alice.create_webhook(receiver.new("mine", "alert")).webhook
    number = created(server)
    calls = [
        lambda people: people.test_webhook(mine.webhook),
        lambda people: people.deliveries(mine.webhook),
        lambda people: people.delete_webhook(mine.webhook),
    ]
    for token in (BOB, ANYONE):
        with as_(server, token) as other:
            assert mine.webhook not in [each.webhook for each in other.webhooks().webhooks]
            for call in calls:
                with pytest.raises(Refused) as refused:
                    call(other)
                assert (refused.value.status, refused.value.code) == (403, "webhook-of-another")
            with pytest.raises(Refused) as refused:
                other.create_webhook(receiver.new("of-another", "alert", experiment=number))
            assert refused.value.code == "experiment-of-another"
            with pytest.raises(Refused) as refused:
                other.create_webhook(receiver.new("for-all", "alert", is_for_everyone=True))
            assert refused.value.code == "webhook-for-everyone"
    with as_(server, READER) as reader, pytest.raises(Refused) as refused:
        reader.webhooks()
    assert refused.value.code == "role-insufficient"
    with as_(server, ROOT) as root:
        shared = root.create_webhook(receiver.new("shared", "experiment-canceled", is_for_everyone=True)).webhook
        act(root, number, "kill")
        (delivery,) = ended(root, shared.webhook, 1)
        assert delivery.state == "delivered"
        root.delete_webhook(shared.webhook)
        root.delete_webhook(mine.webhook)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"url": "https://evil.example/x"}, "webhook-host-not-allowed"),
        ({"url": "http://localhost:1/x"}, "webhook-host-not-allowed"),
        ({"url": "https://a@127.0.0.1/x"}, "webhook-url-invalid"),
        ({"log_patterns": ["("]}, "log-regex-invalid"),
        ({"log_patterns": [""]}, "body-inconsistent"),
        ({"triggers": []}, "body-inconsistent"),
        ({"triggers": ["experiment-exploded"]}, "body-invalid"),
        ({"kind": "pigeon"}, "body-invalid"),
        ({"experiment": 99999}, "experiment-unknown"),
    ],
)
def test_what_could_never_work_is_refused(alice, receiver, change, code):
    new = {name: getattr(receiver.new("never", "alert"), name) for name in wire.NewWebhook.__dataclass_fields__}
    with pytest.raises(Refused) as refused:
        alice.create_webhook(wire.NewWebhook(**{**new, **change}))
    assert refused.value.code == code
    assert alice.webhooks().webhooks == []


def test_a_name_is_taken_once_and_an_experiment_cannot_name_a_webhook_that_is_not_there(server, alice, receiver):
    alice.create_webhook(receiver.new("taken", "alert", is_on_request=True))
    with pytest.raises(Refused) as refused:
        alice.create_webhook(receiver.new("taken", "alert"))
    assert refused.value.code == "webhook-name-taken"
    assert created(server, webhooks=wire.WebhooksUsed(names=["taken"]))
    for token, name in ((ALICE, "missing"), (BOB, "taken")):
        with pytest.raises(Refused) as refused:
            created(server, token, webhooks=wire.WebhooksUsed(names=[name]))
        assert refused.value.code == "webhook-unknown"


def test_an_experiments_file_chooses_its_webhooks(server, alice, receiver):
    usual = alice.create_webhook(receiver.new("usual", "experiment-canceled", path="/usual")).webhook
    alice.create_webhook(receiver.new("asked", "experiment-canceled", path="/asked", is_on_request=True))
    files = {"plain": {}, "asks": {"names": ["asked"]}, "alone": {"names": ["asked"], "exclude": True}}
    for name, used in files.items():
        act(alice, created(server, name=name, webhooks=wire.WebhooksUsed(**used)), "kill")
    receiver.wait(4)
    ended(alice, usual.webhook, 2)
    names = {path: sorted(each.event["event_data"]["experiment"]["name"] for each in receiver.of(path))
             for path in ("/usual", "/asked")}  # fmt: skip
    assert names == {"/usual": ["asks", "plain"], "/asked": ["alone", "asks"]}


def test_an_alert_goes_to_the_webhooks_of_its_experiment_once_however_often_it_is_sent(server, alice, receiver):
    hook = alice.create_webhook(receiver.new("alerts", "alert")).webhook
    number = created(server)
    alert = wire.Alert(request="a1", title="loss is <b>NaN</b>", description="step 3", level="error")
    with as_(server, ROOT, f"e{number}-t1") as trial:
        trial.create_job(wire.JobSpec())
        kept = [trial.alert(alert) for _ in range(3)]
        other = trial.alert(wire.Alert(request="a2", title="done"))
    assert [each.num_webhooks for each in (*kept, other)] == [1] * 4
    receiver.wait(2)
    ended(alice, hook.webhook, 2)
    told = [each.event["event_data"]["data"] for each in receiver.received]
    assert sorted(each["title"] for each in told) == ["done", "loss is <b>NaN</b>"]
    assert {"title": alert.title, "description": "step 3", "level": "error"} in told


def test_a_line_of_a_trials_log_that_matches_calls_once_per_trial_also_if_it_was_printed_before(
    server, alice, receiver
):
    number = created(server, max_trials=2)
    jobs = [wire.trial_job(number, trial) for trial in (1, 2)]
    agent = TakingAgent(server, 100)
    orders = agent.take(*jobs)
    writers = [Writer(as_(server, ROOT, each.job), wire.trial_node("taking", each.number)) for each in orders]
    for each in writers:
        each.say("all is well", "RuntimeError: boom 1", "RuntimeError: boom 2")
    hook = alice.create_webhook(receiver.new("logs", log_patterns=[r"Error: boom \d", "never"])).webhook
    for each in writers:
        each.say("RuntimeError: boom 3")
    receiver.wait(2)
    found = ended(alice, hook.webhook, 2)
    told = [each.event for each in receiver.received]
    assert {each["event_data"]["trial"]["job"] for each in told} == {f"e{number}-t1", f"e{number}-t2"}
    assert {each["event_data"]["task_log"]["line"] for each in told} == {"RuntimeError: boom 1"}
    assert {each["event_data"]["task_log"]["node"] for each in told} == {"taking"}
    assert len(found) == 2 and all("its log matches" in each.event for each in found)
    act(alice, number, "kill")
    for each in writers:
        each.coordinator.close()
    agent.until(lambda: alice.experiment(number).state == "CANCELED")
    agent.leave()


def test_what_waits_for_a_deleted_webhook_is_not_sent(server, alice, receiver):
    receiver.reply = status(500)
    hook = alice.create_webhook(receiver.new("gone", "experiment-canceled")).webhook
    act(alice, created(server), "kill")
    receiver.wait(1)
    alice.delete_webhook(hook.webhook)
    with pytest.raises(Refused) as refused:
        alice.deliveries(hook.webhook)
    assert refused.value.code == "webhook-unknown"


def test_the_commands_of_the_guide(server, alice, receiver, tmp_path):
    """webhooks.md"""
    (commands,) = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "slack-url.txt").write_text(receiver.url("/slack"))
    typed = commands.replace("https://hooks.example.com/everstep", receiver.url("/team"))
    said = guide.type_in(typed, tmp_path, {"EVERSTEP_COORDINATOR": server.url, "EVERSTEP_TOKEN": ALICE})
    assert (
        said.count("secret: ") == 2 and "delivered" in said and "no deliveries" in said and "Deleted webhook 1" in said
    )
    (got,) = receiver.received
    assert (got.path, got.event["event_type"]) == ("/team", "TEST")


def test_the_code_of_the_guide_accepts_what_is_sent_once_and_nothing_else(alice, receiver):
    """webhooks.md"""
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "def " in each]
    names = {}
    exec(code, names)
    is_genuine = names["is_genuine"]
    made = alice.create_webhook(receiver.new("checked", "alert"))
    alice.test_webhook(made.webhook.webhook)
    (got,) = receiver.received
    old = {**got.headers, "X-Everstep-Timestamp": str(int(got.headers["X-Everstep-Timestamp"]) - 1)}
    assert not is_genuine("another", got.headers, got.body, set())
    assert not is_genuine(made.secret, got.headers, got.body + b" ", set())
    assert not is_genuine(made.secret, old, got.body, set())
    seen = set()
    assert is_genuine(made.secret, got.headers, got.body, seen)
    assert not is_genuine(made.secret, got.headers, got.body, seen)


def test_the_commands(server, alice, receiver, tmp_path):
    def everstep(*words, code=0, text=""):
        env = {"EVERSTEP_COORDINATOR": server.url, "EVERSTEP_TOKEN": ALICE}
        done = run(*EVERSTEP, "webhook", *words, folder=tmp_path, text=text, **env)
        assert done.returncode == code, done
        return done.stdout

    made = json.loads(everstep("create", "mine", "-", "--on", "experiment-canceled", "--log-pattern", "x+", "--json",
                               text=receiver.url() + "\n"))  # fmt: skip
    number = str(made["webhook"])
    assert (made["name"], made["triggers"], made["log_patterns"]) == ("mine", ["experiment-canceled"], ["x+"])
    shown = everstep("list")
    assert "mine" in shown and f"allowed hosts: {receiver.host}" in shown and made["secret"] not in shown
    assert "delivered" in everstep("test", number)
    assert receiver.received[0].is_signed_by(made["secret"])
    act(alice, created(server), "kill")
    ended(alice, int(number), 1)
    assert "CANCELED" in everstep("deliveries", number)
    (delivery,) = json.loads(everstep("deliveries", number, "--json"))["deliveries"]
    assert delivery["state"] == "delivered"
    receiver.reply = status(404, b"<no such hook>")
    assert "404: <no such hook>" in everstep("test", number, code=1)
    assert everstep("delete", number) == f"Deleted webhook {number}\n"
    assert json.loads(everstep("list", "--json"))["webhooks"] == []
