"""Whatever is in a file, or in a command, it becomes a job or a usage error: nothing else ever comes out."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import UsageError
from everstep.job_file.load import load, load_command, to_yaml
from everstep.job_file.schema import Job
from everstep.job_file.tree import Tree, dump, parse, planted, replaced

HERE = Path(__file__).parent / "files"
FILES = {path.name: path.read_text() for path in sorted(HERE.glob("*.yaml"))}
WORDS = st.sampled_from(
    ["1", "-1", "a b", "$X", "torchrun", "'", "&&", "16Gi", "a=b", "a:b", "", "\n", "/x", "train.py"]
)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | WORDS
VALUES = st.recursive(
    SCALARS, lambda below: st.lists(below, max_size=3) | st.dictionaries(WORDS.filter(bool), below, max_size=3)
)
some = settings(max_examples=150, deadline=None)


def becomes_a_job_or_is_refused(text: str) -> None:
    try:
        job = load(text).job
    except UsageError:
        return
    assert load(to_yaml(job)).job.dump() == job.dump()


def paths(tree: Tree, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [path, *(each for key, below in tree.children() for each in paths(below, (*path, key)))]


@some
@given(st.sampled_from(sorted(Job.model_fields)), VALUES)
def test_any_value_of_any_key(key: str, value: object) -> None:
    becomes_a_job_or_is_refused(dump({"entrypoint": "a.py", key: value}))


@some
@given(st.sampled_from(["local", "compose", "kubernetes", "slurm", "pbs", "oci"]), VALUES)
def test_any_options_of_any_platform(name: str, value: object) -> None:
    becomes_a_job_or_is_refused(dump({"entrypoint": "a.py", "platform": {name: value}}))


@pytest.mark.parametrize("name", FILES)
def test_any_value_anywhere_in_another_systems_file(name: str) -> None:
    tree = parse(FILES[name], name=name)

    @some
    @given(st.sampled_from(paths(tree)[1:]), VALUES)
    def story(path: tuple[str, ...], value: object) -> None:
        changed = replaced(tree, path, planted(value))
        becomes_a_job_or_is_refused(dump(changed.plain()))

    story()


@pytest.mark.parametrize("name", FILES)
def test_whatever_is_added_to_another_systems_file_is_carried_over_or_told(name: str) -> None:
    tree = parse(FILES[name], name=name)
    for path in paths(tree):
        below = tree.at(*path)
        if below is None or not isinstance(below.value, dict):
            continue
        added = replaced(tree, (*path, "neverHeardOf"), Tree(value="x", text="x"))
        try:
            loaded = load(dump(added.plain()))
        except UsageError as refused:
            told = [str(refused)]
        else:
            told = [*loaded.notes, to_yaml(loaded.job)]
        assert "neverHeardOf" in "\n".join(told), path


COMMAND = shlex.split((HERE / "elasticdl.sh").read_text().replace("\\\n", " "))


@some
@given(st.sampled_from([word.partition("=")[0] for word in COMMAND[2:]] + ["--neverHeardOf"]), WORDS)
def test_any_value_of_any_option_of_elasticdl(option: str, value: str) -> None:
    try:
        loaded = load_command([*COMMAND, f"{option}={value}"])
    except UsageError:
        return
    assert option != "--neverHeardOf" or any("neverHeardOf" in note for note in loaded.notes)
