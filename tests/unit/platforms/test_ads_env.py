"""What ADS's variables mean, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from everstep.errors import UsageError
from everstep.job_file.ads_env import read_node, read_order, storage_environment
from lab.refused import refused

SEED: Mapping[str, str] = {
    "OCI__ENTRY_SCRIPT": "train.py",
    "OCI__ENTRY_SCRIPT_ARGS": "--data-dir '/my data' --timeout 5",
    "OCI__START_ARGS": "",
    "OCI__WORKER_COUNT": "2",
    "OCI__WORK_DIR": "/work_dir/",
    "OCI__MODE": "MAIN",
    "RANK": "0",
}


def test_the_main_node_and_its_workers_are_nodes_of_one_job() -> None:
    order = read_order(SEED, "j", num_gpus=0)
    assert (order.min_nodes, order.max_nodes, order.workers, order.workdir) == (3, 3, 1, "/code")
    assert (order.script, order.args) == ("train.py", ("--data-dir", "/my data", "--timeout", "5"))


def test_there_is_a_worker_for_each_gpu() -> None:
    assert read_order(SEED, "j", num_gpus=4).workers == 4


def test_start_args_are_options_of_a_launcher() -> None:
    told = SEED | {"OCI__START_ARGS": "--nnodes=1:3 --nproc_per_node 2 --max-restarts 7"}
    order = read_order(told, "j", num_gpus=0)
    assert (order.min_nodes, order.max_nodes, order.workers) == (1, 3, 2)
    assert order.policy["max_restarts"] == 7


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"OCI__START_ARGS": "--what-ever 3"}, "--what-ever was not carried over"),
        ({"OCI__ENTRY_SCRIPT_ARGS": "it's"}, "no closing quotation"),
        ({"OCI__WORKER_COUNT": "two"}, "OCI__WORKER_COUNT=two is not a number"),
        ({"OCI__RUNTIME_TYPE": "git"}, "fetching code is not supported"),
        ({"OCI__CLUSTER_TYPE": "DASK"}, "OCI__CLUSTER_TYPE=DASK: Everstep trains PyTorch models"),
    ],
)
def test_what_cannot_be_done_is_refused(change: Mapping[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_order({**SEED, **change}, "j", num_gpus=0)


def test_nodes_meet_in_a_folder_of_their_job() -> None:
    assert read_node(SEED).folder == "/work_dir/Undefined"
    assert read_node(SEED | {"JOB_OCID": "ocid1.job"}).folder == "/work_dir/ocid1.job"
    assert read_node(SEED).is_first
    assert not read_node(SEED | {"RANK": "1"}).is_first
    assert read_node({"OCI__MODE": "MAIN"}).is_first
    assert read_node({"OCI__MODE": "WORKER"}).rank is None


def test_who_reads_the_work_dir_is_told_to_its_driver() -> None:
    assert storage_environment({"OCI_IAM_TYPE": "api_key"}) == {"OCIFS_IAM_TYPE": "api_key"}
    assert storage_environment({"OCI_IAM_TYPE": "api_key", "OCIFS_IAM_TYPE": "resource_principal"}) == {}
    assert storage_environment({}) == {}
    with refused("oci-iam-type-unknown"):
        storage_environment({"OCI_IAM_TYPE": "password"})
