"""The bodies of `POST /jobs` and `POST /jobRuns`, by the service's own names. Pure: no SDK, no valid OCIDs needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from everstep.errors import UsageError
from everstep.job_file.platform_options import Oci
from everstep.job_file.schema import Job, Volume
from everstep.platforms.oci.environment import node_environment

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
        **tags(options),
    }


def run_body(name: str, rank: int, *, job_id: str, project: str, compartment: str, tagged: Mapping[str, Any]) -> _Body:
    """Of the run that is one node."""
    override = {"jobType": "DEFAULT", "environmentVariables": node_environment(rank)}
    return {
        **_run(name, job_id=job_id, project=project, compartment=compartment),
        "jobConfigurationOverrideDetails": override,
        **tagged,
    }


def whole_run_body(name: str, *, job_id: str, project: str, compartment: str, tagged: Mapping[str, Any]) -> _Body:
    """Of the one run that is all nodes."""
    return {**_run(name, job_id=job_id, project=project, compartment=compartment), **tagged}


def tags(options: Oci) -> _Body:
    told = {"freeformTags": dict(options.freeform_tags), "definedTags": dict(options.defined_tags)}
    return {key: value for key, value in told.items() if value}


def _run(name: str, *, job_id: str, project: str, compartment: str) -> _Body:
    return {"projectId": project, "compartmentId": compartment, "displayName": name, "jobId": job_id}


def _alone(options: Oci, configuration: _Body, container: _Body) -> _Body:
    network = {"subnetId": options.subnet} if options.subnet else {}
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
    flexible = {"ocpus": options.ocpus, "memoryInGBs": options.memory_gb}
    flexible = {key: value for key, value in flexible.items() if value is not None}
    return {
        "shapeName": options.shape,
        "blockStorageSizeInGBs": options.block_storage_gb or _MIN_BLOCK_GB,
        **({"jobShapeConfigDetails": flexible} if flexible else {}),
    }


def _runtime_limit(job: Job) -> _Body:
    if job.time_limit is None:
        return {}
    return {"maximumRuntimeInMinutes": math.ceil((job.time_limit + job.checkpoint.grace + _LATE_S) / 60)}


def _logs(options: Oci) -> _Body:
    if not options.log_group:
        return {"enableLogging": False}
    log = {"logId": options.log} if options.log else {}
    return {"enableLogging": True, "enableAutoLogCreation": not options.log, "logGroupId": options.log_group, **log}


def _mounts(job: Job) -> _Body:
    mounts = [_mount(volume) for volume in job.volumes if volume.kind != "emptydir"]
    return {"jobStorageMountConfigurationDetailsList": mounts} if mounts else {}


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
        **({"prefix": prefix} if prefix else {}),
        "destinationPath": str(target.parent),
        "destinationDirectoryName": target.name,
    }
