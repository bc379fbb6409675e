"""Pool files: what is refused, with line and hint, and what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everstep.coordinator.pool.people import Person
from everstep.errors import UsageError
from everstep.pool.pool_file import parse_pool_file

WHOLE = """
pools:
  default:
    platform: local
    max_nodes: 2
    slots_per_node: 1
  gpus:
    platform: {slurm: {partition: low}}
    min_nodes: 1
    max_nodes: 8
    coordinator: http://login1:7070/
    time_limit: 4h
    idle: 90s
    env: {VERSION: 1.10}
    resources: {cpu: 4, gpu: 2}
people:
  alice: {weight: 2, quota: 8}
  bob: {}
"""


def test_a_whole_file() -> None:
    file = parse_pool_file(WHOLE)
    gpus = file.pools["gpus"]
    assert list(file.pools) == ["default", "gpus"]
    assert (gpus.platform.chosen, gpus.coordinator, gpus.env) == ("slurm", "http://login1:7070", {"VERSION": "1.10"})
    assert (gpus.time_limit, gpus.spec().idle_s, gpus.spec().slots_per_node) == (14_400.0, 90.0, 0)
    assert file.people.known == {"alice": Person(weight=2.0, quota=8), "bob": Person()}


def test_people_alone_share_pools_whose_nodes_join_by_themselves() -> None:
    file = parse_pool_file("people: {alice: {quota: 2}, bob: {weight: 3}}")
    assert (file.pools, file.people.of("alice").quota, file.people.of("bob").weight) == ({}, 2, 3.0)


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("", "pool file is empty", "job-file-empty"),
        ("pools: {}", "pool file: pools is empty", "pool-file-empty"),
        ("pool: {}", "pool is not a key of a pool file", "job-file-key-unknown"),
        ("pools:\n  a: {max_nodes: 1, max_node: 1}", "pools.a.max_node is not a key", "job-file-key-unknown"),
        ("pools:\n  a: {}", "pool file:2: pools.a.max_nodes is missing", "job-file-key-missing"),
        ("pools: {A_B: {max_nodes: 1}}", "'A_B' cannot be the name of a pool", "pool-name-invalid"),
        ("pools: {a: {platform: pbs, max_nodes: 1}}", "platform: pbs cannot create pool nodes", "pool-invalid"),
        ("pools: {a: {min_nodes: 2, max_nodes: 1}}", "min_nodes: 2 is more than max_nodes: 1", "pool-invalid"),
        ("pools: {a: {max_nodes: 2}}", "slots_per_node: auto would give all", "pool-invalid"),
        ("pools: {a: {platform: slurm, max_nodes: 2}}", "coordinator is missing", "pool-invalid"),
        ("pools: {a: {max_nodes: 1, coordinator: login1}}", "'login1' is not a URL", "coordinator-url-invalid"),
        (
            "pools: {a: {platform: kubernetes, max_nodes: 2, coordinator: http://c}}",
            "image is missing",
            "pool-invalid",
        ),
        ("pools: {a: {max_nodes: 1, time_limit: 1m}}", "time_limit: 60 s, but trials leave 60 s", "pool-invalid"),
        ("pools: {a: {max_nodes: 1, resources: {min_slots: 1}}}", "belong in an experiment file", "pool-invalid"),
        ("pools: {a: {max_nodes: 1}}\npeople: {eve: {weight: 0}}", "people.eve.weight", "job-file-value-invalid"),
    ],
)
def test_refused(text: str, said: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pool_file(text)
    assert said in str(caught.value)
    assert caught.value.code == code


def test_the_file_of_the_documents_is_right() -> None:
    text = (Path(__file__).parents[3] / "docs" / "pool.md").read_text()
    (found,) = re.findall(r"^```yaml\n(pools:\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert list(parse_pool_file(found).pools) == ["default", "cpus"]
