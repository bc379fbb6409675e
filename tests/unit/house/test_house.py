"""tools/house.py counts what it says it counts, in a small house built for the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house, prose

PHRASES = Path(house.__file__).with_name("phrases.txt").read_text()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three rooms: `errors`, `engine` and `wire`."""
    write(tmp_path, "tools/phrases.txt", PHRASES)
    write(tmp_path, "README.md", "# A house\n")
    write(tmp_path, "CONTRIBUTING.md", "# How to help\n")
    write(tmp_path, "everstep/__init__.py", "from everstep.engine import step\n")
    write(tmp_path, "everstep/__main__.py", "from everstep import engine\n")
    write(tmp_path, "everstep/errors.py", "class Lost(Exception): ...\n")
    write(tmp_path, "everstep/engine/__init__.py", "")
    write(tmp_path, "everstep/engine/step.py", "from everstep.errors import Lost\nfrom . import tree\n")
    write(tmp_path, "everstep/engine/tree.py", "def add() -> None:\n    from everstep import wire\n")
    write(tmp_path, "everstep/wire/__init__.py", "")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def found(root: Path) -> list[tuple[str, int, str]]:
    return [(str(match.path), match.line, match.text) for match in prose.banned_phrases(root)]


# --- rooms and arrows ---


def test_a_room_is_a_top_level_package_or_module(root: Path) -> None:
    write(root, "everstep/templates/train.py", "import everstep.engine\n")

    assert house.rooms(house.modules(root)) == {"errors", "engine", "wire"}


def test_an_arrow_is_an_import_between_rooms_wherever_it_is_written(root: Path) -> None:
    assert house.arrows(house.modules(root)) == {"engine": {"errors", "wire"}, "errors": set(), "wire": set()}


def test_relative_imports_stay_inside_their_room(root: Path) -> None:
    package = house.modules(root)

    assert house.imported(package["everstep.engine.step"], package) == {"everstep.errors", "everstep.engine.tree"}


# --- names ---


def test_a_class_name_with_two_meanings_is_found_with_or_without_an_underscore(root: Path) -> None:
    write(root, "everstep/wire/shards.py", "class _Lost: ...\nclass Lease: ...\n")

    assert house.class_names_twice(house.modules(root)) == {"Lost": ["everstep.errors", "everstep.wire.shards"]}


# --- phrases ---


@pytest.mark.parametrize(
    "sentence",
    [
        "'x' is no uuid of a checkpoint",
        "mode: allocation, but this is none",
        "A micro-batch that killed so many stops the job.",
        "Workers that do nothing for so long hang.",
        "Whoever is lost is replaced.",
        "What is loaded from a peer is JSON.",
        "the coordinator did not get on for 4.5 s",
        "nobody is asked",
        "Its agent is told to kill it.",
        "The others go on.",
        "asked for behind the script's back",
        "It waits in vain.",
        "Neighbours share their memory.",
        "The job was cancelled.",
    ],
)
def test_a_sentence_that_needs_translating_is_found(root: Path, sentence: str) -> None:
    write(root, "README.md", sentence)

    assert found(root)


@pytest.mark.parametrize(
    "sentence",
    [
        "There is no coordinator, and there is none yet.",
        "The file is no longer than a page.",
        "Keep it so long as it is used.",
        "What is a step?",
        "Who decides who leads?",
        "`return None` if the value is None.",
        "Slurm says CANCELLED.",
        "Two errors can be told apart by their code.",
    ],
)
def test_good_english_is_left_alone(root: Path, sentence: str) -> None:
    write(root, "README.md", sentence)

    assert found(root) == []


def test_a_phrase_is_found_over_the_end_of_a_line(root: Path) -> None:
    write(root, "everstep/wire/limits.py", '"""Limits.\n\nThe job stops after so\nmany deaths."""\n\n# in\n# vain\n')

    assert found(root) == [
        ("everstep/wire/limits.py", 3, "so many"),
        ("everstep/wire/limits.py", 6, "in vain"),
    ]


def test_a_formatted_string_is_one_text(root: Path) -> None:
    write(root, "everstep/wire/limits.py", 'text = f"{name!r} is no {kind}"\n')

    assert [text for _, _, text in found(root)] == ["is no {"]


def test_names_of_code_are_not_prose(root: Path) -> None:
    write(root, "README.md", "See [this](everstep/neighbours.py), `whoever` and more.\n")
    write(root, "everstep/wire/limits.py", "nobody = everybody = None\n")

    assert found(root) == []


# --- places ---


def test_there_are_no_places_before_there_is_a_table(root: Path) -> None:
    package = house.modules(root)

    assert (house.places_per_operation(package), house.places_per_setting(package)) == (None, None)


def test_an_operation_is_written_in_the_table_and_in_its_handler(root: Path) -> None:
    write(
        root,
        "everstep/wire/operations.py",
        '_JOB = "/v1/jobs/{job}"\n_WORKER = f"{_JOB}/workers/{{worker}}"\n'
        'class Operations:\n    @operation("POST", f"{_WORKER}/lease", WORKER)\n    def take(self) -> None: ...\n',
    )
    write(root, "everstep/coordinator/edge/handlers.py", "async def take() -> None: ...\n")
    write(root, "everstep/client/calls.py", "take = 1\n")
    operation = "take /v1/jobs/{job}/workers/{worker}/lease"
    two = ["everstep.coordinator.edge.handlers", "everstep.wire.operations"]
    assert house.places_per_operation(house.modules(root)) == {operation: two}

    write(root, "everstep/client/calls.py", 'post(f"{worker}/lease")\n')
    assert house.measure(root).figures["places_per_operation"] == 3


def test_a_setting_is_declared_once(root: Path) -> None:
    write(root, "everstep/wire/policy.py", "class Policy:\n    lease_s: float = 3.0\n    hang_s: float = 600.0\n")
    assert house.measure(root).figures["places_per_setting"] == 1

    write(root, "everstep/cli/options.py", 'lease = Option("--lease")\n')
    write(root, "everstep/job_file/schema.py", "class Elastic:\n    lease_s: float\n")
    write(root, "everstep/env.py", 'HANG = "EVERSTEP_HANG_S"\n')
    write(root, "everstep/testing.py", 'start("--lease", "3")\n')
    assert house.places_per_setting(house.modules(root)) == {
        "lease_s": ["everstep.cli.options", "everstep.job_file.schema", "everstep.wire.policy"],
        "hang_s": ["everstep.env", "everstep.wire.policy"],
    }


# --- bounds ---


def test_a_figure_above_its_bound_is_a_problem_with_its_places(root: Path) -> None:
    write(root, "README.md", "Nobody knows.\n")

    assert list(house.measure(root).problems()) == [
        "banned_phrases is 1, at most 0 allowed",
        "  README.md:1: 'Nobody': no worker, all workers, no one, everyone",
    ]
