"""The environment of a job's containers: ADS's variables, and ours. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from everstep import env
from everstep.errors import UsageError
from everstep.job_file.order import NodeOrder
from everstep.job_file.platform_options import Oci
from everstep.job_file.schema import Job

MAX_CHARACTERS = 20_000  # of all names and values together, by the service's rules


def job_environment(job: Job, options: Oci, order: NodeOrder, *, secrets: str, network: str) -> dict[str, str]:
    """The same for all nodes. The job file overrides it, as with ADS. `secrets`: the file that holds them."""
    vault = vault_secrets(job)
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
        **({env.SECRETS_FILE: secrets} if secrets else {}),
        **({env.NETWORK: network} if network else {}),
        **({env.OCI_ENDPOINT: options.endpoint} if options.endpoint else {}),
        **({env.OCI_SECRETS: ",".join(f"{name}={ocid}" for name, ocid in vault.items())} if vault else {}),
    }
    _refuse_too_long(told)
    return told


def node_environment(rank: int) -> dict[str, str]:
    """Of one job run."""
    return {"OCI__MODE": "MAIN" if rank == 0 else "WORKER", "RANK": str(rank)}


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
