"""The native job file: short to write, strict in what it takes, silent about secrets."""

from __future__ import annotations

from dataclasses import fields

import jsonschema
import pytest

from everstep.engine.backend import WISHES
from everstep.errors import UsageError
from everstep.job_file.entrypoint import Entrypoint
from everstep.job_file.load import json_schema, load, to_yaml
from everstep.job_file.order import experiment_of, num_workers_of, policy_settings
from everstep.job_file.schema import TEXT_PATHS, Job
from everstep.job_file.tree import parse
from everstep.pytorch.run_folder import storage_uri
from everstep.wire import Policy

FULL = """
name: mnist
entrypoint: train.py
args: [--lr, 0.10, --flag, yes, --date, 2024-01-01, --zero, 007, --text, "two words", ~]
env: {DEBUG: 1, RATIO: 1e-3, EMPTY: , ON: on}
secrets: {HF_TOKEN: env:HF_TOKEN, KEY: file:~/.key, PASSWORD: kubernetes:team/password}
nodes: 2:4
workers_per_node: 8
resources: {cpu: 500m, memory: 16Gi, gpu: 8, gpu_type: h100, shm: 8Gi, limits: {cpu: 4, memory: 32Gi}}
coordinator: {image: coordinator:1, resources: {cpu: 0.2, memory: 1024Mi}}
image: registry/mnist:1
build: {dockerfile: docker/Dockerfile, args: {VERSION: 1.10}}
setup:
  - module load cuda/12
  - |
    if true; then
      source env.sh
    fi
volumes: ["./data:/data:ro", {source: "pvc:scratch", target: /scratch}]
checkpoint: s3://bucket/mnist
restarts: 10
time_limit: 1:30:00
elastic: {last_call_s: 30, min_workers: 2}
health: {hang_s: 120, check: true}
shards: {minibatches_per_shard: 2}
seed: 7
hyperparameters: {lr: 1e-3, layers: [64, 64], nested: {dropout: 0.5, nothing: null}}
searcher: {name: single, metric: loss, max_length: {batches: 937}}
labels: {team: vision}
platform:
  kubernetes: {namespace: train, tolerations: [{key: gpu, operator: Exists}], raw: {spec: {hostNetwork: true}}}
  slurm: {partition: gpu, raw: ["--exclude=n7"]}
"""


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(text, name="job.yaml")
    return str(caught.value)


# --- what is read ---


def test_only_the_entrypoint_is_required() -> None:
    job = load("entrypoint: train.py").job
    assert job.entry == Entrypoint(script="train.py")
    assert (job.nodes.min, job.nodes.max, num_workers_of(job), job.platform.chosen) == (1, 1, 1, "local")
    assert to_yaml(job) == "entrypoint: train.py\n"


def test_scalars_in_args_and_env_are_texts_as_they_were_written() -> None:
    job = load(FULL).job
    given = ["--lr", "0.10", "--flag", "yes", "--date", "2024-01-01", "--zero", "007", "--text"]
    assert job.args == (*given, "two words", "~")
    assert job.env == {"DEBUG": "1", "RATIO": "1e-3", "EMPTY": "", "ON": "on"}
    assert job.build is not None and job.build.args == {"VERSION": "1.10"}


def test_amounts_are_numbers_in_one_unit() -> None:
    job = load(FULL).job
    assert (job.resources.cpu, job.resources.memory, job.resources.limits.cpu) == (0.5, 16 * 2**30, 4.0)
    assert job.time_limit == 5400.0
    assert job.hyperparameters["lr"] == 0.001


@pytest.mark.parametrize(
    "written", ["nodes: 2:4", "nodes: '2:4'", "nodes: {min: 2, max: 4}", "nodes:\n  min: 2\n  max: 4"]
)
def test_a_range_of_nodes_is_written_as_one_likes(written: str) -> None:
    job = load(f"entrypoint: a.py\n{written}").job
    assert (job.nodes.min, job.nodes.max) == (2, 4)  # and not 124, which YAML 1.1 reads


def test_one_number_of_nodes_is_both_ends() -> None:
    assert str(load("entrypoint: a.py\nnodes: 3").job.nodes) == "3"
    assert str(load("entrypoint: a.py\nnodes: {min: 3}").job.nodes) == "3"


@pytest.mark.parametrize(
    ("written", "entry"),
    [
        ("train.py", Entrypoint(script="train.py")),
        ("python3 -u train.py --x 'a b'", Entrypoint(script="train.py", args=("--x", "a b"))),
        ("-m pkg.train", Entrypoint(script="pkg.train", is_module=True)),
        ("python -m pkg.train 1", Entrypoint(script="pkg.train", args=("1",), is_module=True)),
        ("[train.py, $HOME, a;b, '&&']", Entrypoint(script="train.py", args=("$HOME", "a;b", "&&"))),
        ("./train --fast", Entrypoint(script="./train", args=("--fast",), is_program=True)),
        ("python -O train.py", Entrypoint(script="python", args=("-O", "train.py"), is_program=True)),
    ],
)
def test_an_entrypoint_is_a_script_a_module_or_a_program(written: str, entry: Entrypoint) -> None:
    job = load(f"entrypoint: {written}").job
    assert job.entry == entry
    assert load(to_yaml(job)).job == job


def test_what_is_empty_is_as_if_it_were_not_there() -> None:
    assert load("entrypoint: a.py\nresources:\nimage: null\nenv: ~\nname:").job == load("entrypoint: a.py").job


def test_workers_are_as_many_as_the_gpus_that_are_asked_for() -> None:
    assert num_workers_of(load("entrypoint: a.py\nresources: {gpu: 4}").job) == 4
    assert num_workers_of(load("entrypoint: a.py\nworkers_per_node: auto").job) == "auto"


def test_the_job_file_accepts_the_backends_that_engines_know() -> None:
    kinds = json_schema()["properties"]["backend"]["anyOf"][0]["enum"]
    assert set(kinds) == set(WISHES) - {"stand-in"}  # which is for tests
    for wish in kinds:
        job = load(f"entrypoint: a.py\nbackend: {wish}").job
        assert job.backend == wish and load(to_yaml(job)).job == job
    said = refusal("entrypoint: a.py\nbackend: mpi")
    assert "job.yaml:2: backend: 'mpi'" in said and "'auto', 'gloo' or 'nccl'" in said
    assert "remove one of them" in refusal("entrypoint: a.py\nbackend: gloo\nenv: {EVERSTEP_BACKEND: nccl}")


def test_the_platform_is_the_one_that_is_named_or_the_only_one() -> None:
    chosen = [
        load(f"entrypoint: a.py\nplatform: {written}").job.platform.chosen
        for written in ("slurm", "{oci: {}}", "{oci: {}, pbs: {}}", "{name: pbs, oci: {}, pbs: {}}")
    ]
    assert chosen == ["slurm", "oci", "local", "pbs"]


def test_anchors_and_merges_are_followed() -> None:
    job = load("entrypoint: a.py\nplatform:\n  oci: &x {project: p, subnet: s}\ndata: {<<: *x, subnet: t}").job
    assert job.data == {"project": "p", "subnet": "t"}


def test_names_are_made_fit_for_clusters_and_stay_different() -> None:
    slugs = [Job(entrypoint=("a.py",), name=name).slug for name in ("My_Job", "9 lives", "x" * 80, "x" * 81, "…")]
    assert slugs[0] == "my-job"
    assert len(set(slugs)) == 5 and all(len(slug) <= 50 and slug[0].isalpha() for slug in slugs)


# --- round trips ---


def test_what_is_dumped_reads_back_as_the_same_job() -> None:
    job = load(FULL).job
    assert load(to_yaml(job)).job == job
    assert Job.model_validate(job.model_dump()) == job


def test_the_json_schema_takes_what_we_take_and_refuses_what_we_refuse() -> None:
    schema = json_schema()
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    for text in (FULL, "entrypoint: [a.py, 1]", to_yaml(load(FULL).job)):
        assert not list(checker.iter_errors(parse(text, name="x").plain() | {"args": []} | {"env": {}}))
    for text in ("name: a", "entrypoint: a.py\ngpus: 1", "entrypoint: a.py\nrestarts: -1"):
        assert list(checker.iter_errors(parse(text, name="x").plain()))


# --- what is refused ---


def test_an_unknown_key_is_an_error_with_its_line_and_the_key_that_was_meant() -> None:
    assert refusal("entrypoint: a.py\nresources:\n  cpu: 1\n  gpus: 2\n") == (
        "job.yaml:4: resources.gpus is not a key of resources\n  HINT: did you mean gpu?"
    )
    assert "did you mean entrypoint?" in refusal("entrypont: a.py")
    assert "did you mean workers_per_node?" in refusal("entrypoint: a.py\nnproc_per_node: 2")
    assert "did you mean time_limit?" in refusal("entrypoint: a.py\ntime-limit: 2h")
    assert "did you mean partition?" in refusal("entrypoint: a.py\nplatform: {slurm: {Partition: x}}")
    assert "job.yaml:4: volumes.1.read_only" in refusal(
        "entrypoint: a.py\nvolumes:\n  - a:/a\n  - {source: b, target: /b, read_only: true}"
    )


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    told = refusal("nodes: 4:2\nentrypoint: a.py\nmemory: 1\nresources: {memory: lots}\nrestarts: many")
    assert told.splitlines()[0] == "4 problems in job.yaml"
    assert [line.split(":")[0].strip() for line in told.splitlines()[1:]] == ["line 1", "line 3", "line 4", "line 5"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: a", "entrypoint is missing\n  HINT: every job file needs it"),
        ("entrypoint: a.py\nnodes: 4:2", "job.yaml:2: nodes: from 4 to 2 nodes\n  HINT: MIN:MAX, such as 2:4"),
        ("entrypoint: a.py\nnodes: 0", "nodes"),
        ("entrypoint: a.py\nnodes: some", "'some' is neither a number nor a range"),
        ("entrypoint: torchrun --nproc_per_node 4 a.py", "`entrypoint: a.py`, and `workers_per_node: 4`"),
        ("entrypoint: mpirun a.py", "mpirun starts workers its own way"),
        ("entrypoint: cd x && python a.py", "&& needs a shell"),
        ("entrypoint: a.py --data $DATA", "$DATA needs a shell"),
        ("entrypoint: a.py 'b", "no closing quotation"),
        ("entrypoint: ''", "nothing to run"),
        ("entrypoint: []", "nothing to run"),
        ("entrypoint: a.py\nresources: {memory: 16}", "16 is 16 bytes, less than 1Mi\n  HINT: with a unit: 16Gi"),
        ("entrypoint: a.py\nresources: {memory: 500m}", "did you mean 500M or 500Mi?"),
        ("entrypoint: a.py\nresources: {memory: 32gb}", "did you mean 32G"),
        ("entrypoint: a.py\nresources: {cpu: 0.0001}", "not a whole number of thousandths"),
        ("entrypoint: a.py\nresources: {cpu: 4, limits: {cpu: 2}}", "limits.cpu: 2 is less than cpu: 4"),
        ("entrypoint: a.py\nresources: {memory: 1Gi, shm: 2Gi}", "shm: 2Gi of 1Gi memory"),
        ("entrypoint: a.py\nvolumes: [/data]", "target missing"),
        ("entrypoint: a.py\nvolumes: ['a:b']", "'b' is not an absolute path"),
        ("entrypoint: a.py\nvolumes: ['a:/d', 'b:/d/']", "two volumes at /d"),
        ("entrypoint: a.py\nvolumes: [{}]", "volumes.0.target is missing"),
        ("entrypoint: a.py\nenv: {a-b: 1}", "'a-b' is not a valid name of an environment variable"),
        ("entrypoint: a.py\nenv: {A: 1}\nsecrets: {A: env:A}", "A is in env and in secrets"),
        ("entrypoint: a.py\nenv: [A=1]", "a mapping: key: value"),
        ("entrypoint: a.py\nargs: --x", "a list: [a, b]"),
        ('entrypoint: a.py\nargs: ["a\\0b"]', "a NUL character"),
        ("entrypoint: a.py\nhyperparameters: {lr: .nan}", "infinity and NaN have no JSON form"),
        ("entrypoint: a.py\ntime_limit: 1:30", "is ambiguous: hours or minutes\n  HINT: write 1:30:00, or 1h30m"),
        ("entrypoint: a.py\nsearcher: {max_length: {batchs: 1}}", "searcher.max_length.batchs"),
        ("entrypoint: a.py\nplatform: kubernets", "'kubernets'"),
        ("entrypoint: a.py\nname: a\nname: b", "job.yaml:3: name appears twice, also in line 2"),
        ("entrypoint: a.py\n\tname: b", "job.yaml:2: this is not YAML"),
        ("entrypoint: a.py\nname: !!python/object:os.system x", "is not supported"),
        ("entrypoint: a.py\n---\nname: b", "one job in a file"),
        ("", "job.yaml is empty"),
        ("- a", "is not a mapping"),
        ("kind: job\nspec: {}", "job.yaml:1: kind: job is not supported"),
        ("a: &a [*a]", "more than"),
    ],
)
def test_what_is_wrong_is_told_with_the_way_out(text: str, told: str) -> None:
    assert told in refusal(text)


def test_a_few_lines_cannot_stand_for_billions_of_values() -> None:
    lines = ["entrypoint: a.py", "data:", "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "more than 100,000 values" in refusal("\n".join(lines))


# --- secrets ---

LITERAL = "entrypoint: a.py\nsecrets: {TOKEN: hunter2, OTHER: env:OTHER}"


def test_a_secret_in_the_file_is_never_shown() -> None:
    loaded = load(LITERAL)
    shown = [repr(loaded), str(loaded.job), to_yaml(loaded.job), loaded.job.model_dump_json(), str(loaded.job.dump())]
    assert not [text for text in shown if "hunter2" in text]
    assert all("**********" in text and "env:OTHER" in text for text in shown)
    assert loaded.job.secrets["TOKEN"].held == "hunter2"
    assert "secrets.TOKEN is in the file itself" in loaded.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "entrypoint: a.py\nsecrets: {TOKEN: [hunter2]}",
        "entrypoint: a.py\nsecrets: {TOKEN: {value: hunter2}}",
        "entrypoint: a.py\nsecrets: hunter2",
        "entrypoint: a.py\nsecrets: {TOKEN: 'hunter2}",
        "entrypoint: a.py\nsecrets: {TOKEN: hunter2, TOKEN: hunter2}",
        "secrets: {TOKEN: hunter2}",
    ],
)
def test_no_error_shows_a_secret(text: str) -> None:
    assert "hunter2" not in refusal(text)


def test_a_masked_secret_is_not_taken_for_a_value() -> None:
    assert "was masked when the file was printed" in refusal(to_yaml(load(LITERAL).job))


# --- what the parts of the system get ---


def test_each_setting_of_the_policy_has_a_place_in_the_file() -> None:
    blocks = [
        Job.model_fields[name].annotation.model_fields for name in ("elastic", "health", "shards", "logs", "metrics")
    ]
    named = {name for block in blocks for name in block} - {"check"}
    elsewhere = {"start_nodes", "start_workers", "min_nodes", "max_nodes", "max_restarts"}
    assert named | elsewhere == {field.name for field in fields(Policy)}
    assert not named & elsewhere


def test_the_policy_is_the_files() -> None:
    policy = Policy(**policy_settings(load(FULL).job, 8))
    assert (policy.min_nodes, policy.max_nodes, policy.start_workers, policy.max_restarts) == (2, 4, 16, 10)
    assert (policy.hang_s, policy.last_call_s, policy.minibatches_per_shard) == (120.0, 30.0, 2)
    assert Policy(**policy_settings(load("entrypoint: a.py").job, 1)).lease_s == Policy().lease_s


def test_the_trainer_is_told_by_determineds_names_and_not_the_secrets() -> None:
    told = experiment_of(load(FULL + "data: {root: /data}").job)
    assert told["reproducibility"] == {"experiment_seed": 7}
    assert told["checkpoint_storage"] == {"type": "s3", "bucket": "bucket", "prefix": "mnist"}
    assert told["resources"] == {"slots_per_trial": 32}
    assert told["searcher"]["max_length"] == {"batches": 937}
    assert "TOKEN" not in str(told)
    assert experiment_of(load("entrypoint: a.py\ncheckpoint: ckpt").job)["checkpoint_storage"] == {"host_path": "ckpt"}


@pytest.mark.parametrize(
    "uri", ["oci://b@n/x", "file:///x", "abfs://c/x", "s3://b/x", "gs://b/x", "az://c/x", "/x", "x"]
)
def test_what_is_kept_is_told_for_every_storage(uri: str) -> None:
    job = load(f"entrypoint: a.py\ncheckpoint: {{uri: '{uri}', keep_latest: 9, keep_best: 0}}").job
    told = experiment_of(job)["checkpoint_storage"]

    assert (told["save_trial_latest"], told["save_trial_best"]) == (9, 0)
    assert storage_uri(told) == uri


def test_keys_that_hold_texts_are_found_in_the_schema() -> None:
    some = {("args",), ("env",), ("nodes",), ("build", "args"), ("volumes", "source"), ("platform", "slurm", "raw")}
    assert some <= TEXT_PATHS
    assert not {("hyperparameters",), ("restarts",), ("platform", "kubernetes", "raw")} & TEXT_PATHS
