"""The bodies of `POST /jobs` and `POST /jobRuns`, by the service's own names, and the environment of the containers:
ADS's variables, and ours. Pure: no SDK, no valid OCIDs needed."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from everstep import env
from everstep.errors import UsageError
from everstep.job_file.order import NodeOrder
from everstep.job_file.platform_options import Oci
from everstep.job_file.schema import Job, Volume
from everstep.platforms.raw_overlay import given

MAX_CHARACTERS = 20_000  # of all names and values of the environment together, by the service's rules
NODE_GROUP = "nodes"
_MIN_BLOCK_GB = 50
_LATE_S = 60.0  # the service's own end of a run comes after the coordinator's: that is the second line of defence
_Body = dict[str, Any]


def job_body(job: Job, options: Oci, environment: Mapping[str, str]) -> _Body:
    configuration = {"jobType": "DEFAULT", "environmentVariables": dict(environment)}
    container = {"jobEnvironmentType": "OCIR_CONTAINER", "image": job.image}
    return {
        "projectId": options.project,
        "compartmentId": options.compartment,
        "displayName": job.title,
        **(
            _alone(options, {**configuration, **_runtime_limit(job)}, container)
            if options.mode == "runs"
            else _together(job, options, configuration, container)
        ),
        "jobLogConfigurationDetails": _logs(options),
        **_mounts(job),
        **_tags(options),
    }


def run_body(name: str, rank: int, options: Oci, job_id: str) -> _Body:
    """Of the run that is one node, or all of them."""
    told = {"OCI__MODE": "MAIN" if rank == 0 else "WORKER", "RANK": str(rank)}
    override = {"jobConfigurationOverrideDetails": {"jobType": "DEFAULT", "environmentVariables": told}}
    return {
        "projectId": options.project,
        "compartmentId": options.compartment,
        "displayName": name,
        "jobId": job_id,
        **(override if options.mode == "runs" else {}),
        **_tags(options),
    }


def _tags(options: Oci) -> _Body:
    return given({"freeformTags": dict(options.freeform_tags), "definedTags": dict(options.defined_tags)})


def _alone(options: Oci, configuration: _Body, container: _Body) -> _Body:
    network = given({"subnetId": options.subnet})
    kind = "STANDALONE" if options.subnet else "ME_STANDALONE"
    return {
        "jobConfigurationDetails": configuration,
        "jobInfrastructureConfigurationDetails": {"jobInfrastructureType": kind, **_shape(options), **network},
        "jobEnvironmentConfigurationDetails": container,
    }


def _together(job: Job, options: Oci, configuration: _Body, container: _Body) -> _Body:
    network = (
        {"jobNetworkType": "CUSTOM_NETWORK", "subnetId": options.subnet}
        if options.subnet
        else {"jobNetworkType": "DEFAULT_NETWORK"}
    )
    group = {
        "name": NODE_GROUP,
        "replicas": job.nodes.max,
        "minimumSuccessReplicas": job.nodes.min,  # the others may be lost
        "jobConfigurationDetails": configuration,
        "jobInfrastructureConfigurationDetails": {"jobInfrastructureType": "MULTI_NODE", **_shape(options)},
        "jobEnvironmentConfigurationDetails": container,
    }
    return {
        "jobConfigurationDetails": {"jobType": "EMPTY"},
        "jobInfrastructureConfigurationDetails": {"jobInfrastructureType": "EMPTY"},
        "jobNodeConfigurationDetails": {
            "jobNodeType": "MULTI_NODE",
            "startupOrder": "IN_PARALLEL",
            **_runtime_limit(job),
            "jobNetworkConfiguration": network,
            "jobNodeGroupConfigurationDetailsList": [group],
        },
    }


def _shape(options: Oci) -> _Body:
    flexible = given({"ocpus": options.ocpus, "memoryInGBs": options.memory_gb})
    return {
        "shapeName": options.shape,
        "blockStorageSizeInGBs": options.block_storage_gb or _MIN_BLOCK_GB,
        **given({"jobShapeConfigDetails": flexible}),
    }


def gpus_of_shape(shape: str) -> int | None:
    """According to the shape's name: 2 for VM.GPU.A10.2. None: the name does not say."""
    if "GPU" not in shape:
        return 0
    found = re.search(r"\.GPU.*\.(\d+)$", shape)
    return int(found[1]) if found else None


def _runtime_limit(job: Job) -> _Body:
    if job.time_limit is None:
        return {}
    return {"maximumRuntimeInMinutes": math.ceil((job.time_limit + job.checkpoint.grace + _LATE_S) / 60)}


def _logs(options: Oci) -> _Body:
    if not options.log_group:
        return {"enableLogging": False}
    where = {"logGroupId": options.log_group, **given({"logId": options.log})}
    return {"enableLogging": True, "enableAutoLogCreation": not options.log, **where}


def _mounts(job: Job) -> _Body:
    mounts = [_mount(volume) for volume in job.volumes if volume.kind != "emptydir"]
    return given({"jobStorageMountConfigurationDetailsList": mounts})


def _mount(volume: Volume) -> _Body:
    """oci://bucket@namespace/prefix as a folder of the node."""
    scheme, _, rest = volume.source.partition("://")
    place, _, prefix = rest.partition("/")
    bucket, at, namespace = place.partition("@")
    if scheme != "oci" or not at:
        raise UsageError(
            f"volumes: {volume.source} cannot be mounted in a job run",
            hint="oci://bucket@namespace/prefix; others by raw.jobStorageMountConfigurationDetailsList of platform.oci",
            code="oci-volume-unsupported",
        )
    target = PurePosixPath(volume.target)
    return {
        "storageType": "OBJECT_STORAGE",
        "namespace": namespace,
        "bucket": bucket,
        **given({"prefix": prefix}),
        "destinationPath": str(target.parent),
        "destinationDirectoryName": target.name,
    }


# --- the environment ------------------------------------------------------------------------------


def job_environment(job: Job, options: Oci, order: NodeOrder, *, secrets: str, network: str) -> dict[str, str]:
    """The same for all nodes. The job file overrides it, as with ADS. `secrets`: the file that holds them."""
    told = {
        "OCI__CLUSTER_TYPE": "PYTORCH",
        "OCI__WORK_DIR": options.work_dir,
        "OCI__EPHEMERAL": "1",
        "OCI__WORKER_COUNT": str(job.nodes.max - 1),
        "OCI__PS_COUNT": "0",
        "OCI__START_ARGS": shlex.join(options.start_options),
        "OCI__ENTRY_SCRIPT": order.script,
        "OCI__ENTRY_SCRIPT_ARGS": shlex.join(order.args),  # ADS's images split it as a shell would
        "OCI_IAM_TYPE": "resource_principal",
        "OCIFS_IAM_TYPE": job.env.get("OCI_IAM_TYPE", "resource_principal"),
        **job.env,
        env.ORDER: order.to_json(),
        **given({env.SECRETS_FILE: secrets, env.NETWORK: network, env.OCI_ENDPOINT: options.endpoint}),
        **given({env.OCI_SECRETS: ",".join(f"{name}={ocid}" for name, ocid in vault_secrets(job).items())}),
    }
    _refuse_too_long(told)
    return told


def vault_secrets(job: Job) -> Mapping[str, str]:
    return {name: secret.held for name, secret in job.secrets.items() if secret.kind == "oci"}


def _refuse_too_long(told: Mapping[str, str]) -> None:
    sizes = {name: len(name) + len(value) for name, value in told.items()}
    if (total := sum(sizes.values())) > MAX_CHARACTERS:
        longest = max(sizes, key=lambda name: sizes[name])
        raise UsageError(
            f"the environment has {total} characters, {longest} alone {sizes[longest]}; OCI takes {MAX_CHARACTERS}",
            hint="put long arguments and hyperparameters into a file of the code's folder",
            code="oci-environment-too-long",
        )
