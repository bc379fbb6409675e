"""Sizes, CPUs and times; YAML and back; `--set`. Whatever a user may write."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import UsageError
from everstep.job_file import overrides
from everstep.job_file.load import load
from everstep.job_file.quantity import format_cpus, format_seconds, format_size, parse_cpus, parse_seconds, parse_size
from everstep.job_file.tree import dump, parse, planted

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_/.-]{0,12}", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda below: st.lists(below, max_size=4) | st.dictionaries(KEYS, below, max_size=4))
NUMBERS = st.sampled_from(
    [
        *("5", "0.10", "1e-3", "1:30", "0x1F", "0o17", "010", ".5", "-1", "1_000", "2024-01-01", ".inf"),
        *("yes", "no", "on", "off", "~", "null", "true", "="),
    ]
)

some = settings(max_examples=50, deadline=None)  # a busy machine pauses for longer than any deadline


# --- amounts ---


@some
@given(st.integers(2**20, 2**60))
def test_a_size_reads_back_as_itself(size: int) -> None:
    assert parse_size(format_size(size)) == size


@some
@given(st.integers(1, 10**9))
def test_a_number_of_cpus_reads_back_as_itself(thousandths: int) -> None:
    assert parse_cpus(f"{thousandths}m") == thousandths / 1000
    assert parse_cpus(format_cpus(thousandths / 1000)) == thousandths / 1000


@some
@given(st.integers(1, 10**8))
def test_a_time_reads_back_as_itself(seconds: int) -> None:
    assert parse_seconds(format_seconds(float(seconds))) == seconds
    assert parse_seconds(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}") == seconds


@some
@given(TEXTS | st.floats())
def test_what_is_no_amount_is_a_usage_error(written: str | float) -> None:
    for parser in (parse_size, parse_cpus, parse_seconds):
        try:
            amount = parser(written)
        except UsageError:
            continue
        assert amount > 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("16Gi", 2**34), ("16GiB", 2**34), ("16 GB", 16 * 10**9), ("1.5Gi", 3 * 2**29), ("2048Mi", 2**31), (2**30, 2**30)],
)
def test_sizes_are_as_kubernetes_has_them(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), (90.5, 90.5), ("1h30m", 5400), ("2-12:00:00", 216000), ("1.5h", 5400), ("2d", 172800)],
)
def test_times_are_as_people_and_batch_systems_have_them(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == seconds


# --- YAML ---


@some
@given(VALUES)
def test_what_is_dumped_is_read_as_the_same_here_and_elsewhere(value: object) -> None:
    text = dump({"key": value})
    assert parse(text, name="x").plain() == {"key": value}
    assert yaml.safe_load(text) == {"key": value}  # by the rules of YAML 1.1


@some
@given(VALUES)
def test_json_is_yaml(value: object) -> None:
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    assert parse(json.dumps({"key": finite}), name="x").plain() == {"key": finite}


@some
@given(NUMBERS)
def test_what_looks_like_a_number_is_a_text_where_a_text_is_meant(text: str) -> None:
    assert load(f"entrypoint: a.py\nargs: [{text}]\nenv: {{A: {text}}}").job.args == (text,)
    assert load(dump({"entrypoint": "a.py", "args": [text]})).job.args == (text,)


@some
@given(st.lists(TEXTS, max_size=5), st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), TEXTS, max_size=3))
def test_arguments_with_blanks_quotes_and_newlines_survive(args: list[str], env: dict[str, str]) -> None:
    job = load(dump({"entrypoint": ["a.py", *args], "args": args, "env": env})).job
    assert load(dump(job.dump())).job == job
    assert job.entry.args == (*args, *args)
    assert job.env == env


# --- --set ---


@some
@given(st.lists(KEYS, min_size=1, max_size=4).filter(lambda path: path[0] != "secrets"), VALUES)
def test_what_is_set_is_there_and_nothing_else_changed(path: list[str], value: object) -> None:
    tree = planted({"other": {"a": [1, 2]}, "list": [{"b": 1}]})
    key = ".".join(f'"{part}"' for part in path)
    changed = overrides.apply(tree, [f"{key}={dump(value)}"]).plain()
    found = changed
    for part in path:
        found = found[part]
    assert found == value
    assert {name: each for name, each in changed.items() if name != path[0]} == {
        name: each for name, each in tree.plain().items() if name != path[0]
    }


JOB = "entrypoint: a.py\nresources: {cpu: 1, memory: 1Gi}\nargs: [a, b]\nvolumes: [{source: x, target: /x}]"


def test_keys_are_dotted_paths_and_values_are_yaml() -> None:
    changes = ["nodes=1:4", "resources.memory=16Gi", "args.1=0.10", "env.A=yes", "volumes.0.readonly=true"]
    changes += ["platform.slurm={partition: gpu}", "hyperparameters.lr=1e-3", 'labels."example.com/team"=a=b']
    job = load(JOB, changes).job
    assert (str(job.nodes), job.resources.memory, job.resources.cpu) == ("1:4", 2**34, 1.0)
    assert (job.args, job.env, job.volumes[0].readonly) == (("a", "0.10"), {"A": "yes"}, True)
    assert (job.platform.chosen, job.hyperparameters, job.labels) == (
        "slurm",
        {"lr": 0.001},
        {"example.com/team": "a=b"},
    )


def test_the_last_one_counts_and_nothing_takes_a_key_away() -> None:
    job = load(JOB, ["nodes=2", "nodes=3", "resources.memory="]).job
    assert (job.nodes.max, job.resources.memory) == (3, None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("nodes", "--set nodes: not KEY=VALUE"),
        ("=3", "not KEY=VALUE"),
        ("a..b=3", "not KEY=VALUE"),
        ("args.7=x", "--set args.7: item 7 does not exist: the list has 2"),
        ("args.x=x", "item x does not exist"),
        ("resources.gpus=2", "resources.gpus is not a key of resources\n  HINT: did you mean gpu?"),
        ("nodes=4:2", "nodes: from 4 to 2 nodes"),
        ("env={A: [", "this is not YAML"),
        ("secrets.TOKEN=hunter2", "other users can see a secret on the command line"),
        ("secrets={TOKEN: hunter2}", "other users can see a secret on the command line"),
    ],
)
def test_what_cannot_be_set_is_told(change: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(JOB, [change])
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_where_a_secret_is_kept_may_be_set() -> None:
    assert str(load(JOB, ["secrets.TOKEN=env:HF"]).job.secrets["TOKEN"]) == "env:HF"
