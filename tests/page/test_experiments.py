"""The list of experiments and what people do there, in a real browser before a real coordinator. Trials train by
nothing but their calls."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.job_file.experiment import load_experiment
from everstep.launcher.local_coordinator import CoordinatorFiles, private_directory, start_coordinator
from everstep.wire.tokens import READ_ONLY, USER
from lab.command import until
from lab.experiments import ToyTrials, spec
from lab.page_window import Window, chromium, serious_findings, window
from lab.people import ALICE, BOB, READER, ROOT, as_, write_tokens

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>"
FILE = """\
name: forked
entrypoint: train.py
searcher: {name: random, metric: loss, max_trials: 2, max_length: {batches: 8}}
hyperparameters: {lr: {log: [0.001, 0.1]}}
"""


class People:
    """A coordinator whose people have names."""

    def __init__(self, folder: Path) -> None:
        self.files = CoordinatorFiles(directory=private_directory(folder / "coordinator"))
        write_tokens(self.files.directory)
        self.process, self.url = start_coordinator(self.files)

    def as_(self, token: str = ALICE) -> Coordinator:
        return as_(self, token)

    def create(self, token: str = ALICE, **given: Any) -> wire.ExperimentView:
        with self.as_(token) as person:
            return person.create_experiment(spec("random", **{"max_trials": 1, **given}))

    def state(self, number: int) -> str:
        with self.as_() as person:
            return person.experiment(number).state

    @contextmanager
    def signed_in(self, browser: Any, token: str = ALICE, role: str = USER, **options: Any) -> Iterator[Window]:
        with self.as_(token) as person:
            code = person.page_code(wire.PageCodeRequest(role=role)).code
        with window(browser, self.url, **options) as made:
            page = made.open("/", code)
            page.get_by_role("heading", name="Jobs", exact=True).wait_for()
            page.close()
            yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def people(tmp_path_factory: Any) -> Iterator[People]:
    made = People(tmp_path_factory.mktemp("people"))
    yield made
    made.process.kill()


@pytest.fixture
def view(browser: Any, people: People) -> Iterator[Window]:
    with people.signed_in(browser) as made:
        yield made


def row_of(page: Any, name: str) -> Any:
    return page.get_by_role("row").filter(has_text=name)


def named() -> str:
    return f"name-{uuid.uuid4().hex[:8]}"


def test_without_experiments_the_list_says_how_to_create_one(browser: Any, tmp_path: Path) -> None:
    people = People(tmp_path)
    with people.signed_in(browser) as view:
        page = view.open("/experiments")
        page.get_by_role("heading", name="No experiments yet").wait_for()
        assert "everstep e create" in page.locator(".empty code").inner_text()
        assert serious_findings(page) == []
    people.process.kill()


def test_the_list_is_live_from_the_first_trial_to_the_end(view: Window, people: People) -> None:
    page = view.open("/experiments")
    page.get_by_role("heading", name="Experiments", exact=True).wait_for()
    page.evaluate("() => (window.isSamePage = true)")
    name = named()
    number = people.create(ROOT, name=name, max_trials=2).experiment
    row_of(page, name).get_by_text("ACTIVE").wait_for()
    with people.as_(ROOT) as root:
        toy = ToyTrials(people.url, ROOT, number)
        toy.train(1)
        row_of(page, name).get_by_text("1 of 2").wait_for()
        toy.train_all()
        toy.close()
        row_of(page, name).get_by_text("COMPLETED").wait_for()
        best = root.experiment(number).best
    assert best is not None and f"{best.metric:.4g}" in row_of(page, name).inner_text()
    row_of(page, name).get_by_text("100%").wait_for()
    assert page.evaluate("() => window.isSamePage"), "without a reload"


def test_columns_sorting_and_filters_are_in_the_address(view: Window, people: People) -> None:
    label = named()
    rates = {}
    for i in range(3):
        made = people.create(ROOT, name=f"{label}-{i}", labels=[label], seed=i)
        toy = ToyTrials(people.url, ROOT, made.experiment)
        toy.train_all()
        rates[f"{label}-{i}"] = toy.trials()[0].hparams["lr"]
        toy.close()
    page = view.open("/experiments")
    page.get_by_role("combobox", name="Label").select_option(label)
    page.get_by_text("Columns").click()
    page.get_by_role("checkbox", name="lr", exact=True).check()
    page.get_by_text("Columns").click()
    page.get_by_role("button", name="lr", exact=True).click()
    page.get_by_role("button", name=re.compile("lr.*")).click()  # ascending
    assert all(part in page.url for part in (f"label={label}", "hp%3Alr", "sort=hp%3Alr", "up=1"))

    def names() -> list[str]:
        return [each for row in page.locator("tbody tr").all_inner_texts() for each in re.findall(rf"{label}-\d", row)]

    wanted = sorted(rates, key=lambda name: rates[name])
    until(lambda: names() == wanted, lambda: f"{names()}, not {wanted}")
    address = page.url
    again = view.tab()
    again.goto(address)
    row_of(again, wanted[0]).wait_for()
    assert [re.findall(rf"{label}-\d", each)[0] for each in again.locator("tbody tr").all_inner_texts()] == wanted

    again.get_by_role("combobox", name="State").select_option("paused")
    again.get_by_role("heading", name="No experiment matches").wait_for()
    again.get_by_role("link", name="show all experiments").click()
    row_of(again, wanted[0]).wait_for()


def test_actions_change_the_state_and_ask_before_something_is_lost(view: Window, people: People) -> None:
    name = named()
    number = people.create(name=name).experiment
    page = view.open(f"/experiments?find={name}")
    page.get_by_role("checkbox", name=f"Select experiment {number}").check()
    actions = page.get_by_role("group", name="Actions for the selected experiments")
    actions.get_by_role("button", name="Pause").click()
    row_of(page, name).get_by_text("PAUSED").wait_for()
    actions.get_by_role("button", name="Activate").click()
    row_of(page, name).get_by_text("ACTIVE").wait_for()

    actions.get_by_role("button", name="Kill").click()
    dialog = page.get_by_role("dialog")
    assert "is lost" in dialog.inner_text() and serious_findings(page) == []
    dialog.get_by_role("button", name="Cancel").click()
    assert people.state(number) == "ACTIVE"
    actions.get_by_role("button", name="Kill").click()
    dialog.get_by_role("button", name="Kill").click()
    row_of(page, name).get_by_text("CANCELED").wait_for()
    actions.get_by_role("button", name="Archive", exact=True).click()
    page.get_by_role("heading", name="No experiment matches").wait_for()
    page.get_by_role("checkbox", name="Archived too").check()
    row_of(page, name).wait_for()


def test_an_experiment_is_edited_and_forked_with_a_changed_file(view: Window, people: People) -> None:
    with people.as_() as alice:
        file = people.files.directory / f"{named()}.yaml"
        file.write_text(FILE)
        loaded = replace(load_experiment(file).spec, request=uuid.uuid4().hex)
        number = alice.create_experiment(loaded).experiment
    page = view.open(f"/experiments/{number}")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Labels").fill("good, new")
    dialog.get_by_label(re.compile("Priority")).fill("7")
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="detached")
    with people.as_() as alice:
        after = alice.experiment(number)
        assert (after.labels, after.scheduling.priority, after.scheduling.weight) == (["good", "new"], 7, 1.0)

    page.get_by_role("button", name="Fork").click()
    editor = dialog.get_by_label("File")
    editor.wait_for()
    assert editor.input_value() == FILE
    editor.fill(FILE.replace("max_trials: 2", "max_trails: 2"))
    view.expected.append("422")
    dialog.get_by_role("button", name="Create").click()
    said = dialog.get_by_role("alert")
    said.wait_for()
    assert "max_trails" in said.inner_text() and "/tmp" not in said.inner_text()
    editor.fill(FILE.replace("max_trials: 2", "max_trials: 5"))
    dialog.get_by_label("Create it paused").check()
    dialog.get_by_role("button", name="Create").click()
    page.wait_for_url(re.compile(rf"/experiments/(?!{number}$)\d+$"))
    fork = int(page.url.rpartition("/")[2])
    with people.as_() as alice:
        made = alice.experiment(fork)
        assert (made.forked_from, made.state, made.owner) == (number, "PAUSED", "alice")
        assert alice.experiment_config(fork).spec.searcher["max_trials"] == 5


@pytest.mark.parametrize(("token", "role"), [(ALICE, READ_ONLY), (READER, READ_ONLY)])
def test_who_may_only_look_sees_no_buttons_and_is_refused_by_hand(
    browser: Any, people: People, token: str, role: str
) -> None:
    name = named()
    number = people.create(name=name).experiment
    with people.signed_in(browser, token, role) as view:
        page = view.open(f"/experiments?select={number}")
        row_of(page, name).wait_for()
        page.get_by_text("1 selected").wait_for()
        for path in (page.url, f"{people.url}/experiments/{number}"):
            page.goto(path)
            page.get_by_text(name).first.wait_for()
            for button in ("Pause", "Kill", "Fork", "Edit", "Archive"):
                assert page.get_by_role("button", name=button, exact=True).count() == 0
        view.expected.append("403")
        call = """(path) => fetch(path, {method: "POST", body: '{"action": "kill"}', headers: {"x-everstep": "page"}})
            .then((reply) => reply.status)"""
        assert page.evaluate(call, f"/v1/experiments/{number}/action") == 403
    assert people.state(number) == "ACTIVE"


def test_what_another_person_owns_is_only_looked_at(browser: Any, people: People) -> None:
    name = named()
    number = people.create(name=name).experiment
    with people.signed_in(browser, BOB) as view:
        page = view.open(f"/experiments/{number}")
        page.get_by_role("button", name="Fork").wait_for()  # a fork is his own
        assert page.get_by_role("button", name="Kill").count() == 0


def test_hostile_words_are_shown_as_text(view: Window, people: People) -> None:
    label = f"<script>document.title='owned'</script>{named()}"
    people.create(name=HOSTILE, labels=[label], description=HOSTILE)
    page = view.open("/experiments?columns=experiment,name,state,labels,reason")
    row = row_of(page, HOSTILE)
    row.wait_for()
    assert label in row.inner_text() and row.locator("img, b, script").count() == 0
    page.get_by_text("Columns").click()
    assert "owned" not in page.title() and serious_findings(page) == []
